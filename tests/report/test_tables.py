import io

from rich.console import Console, RenderableType

from atoll.report.results import read_folder
from atoll.report.tables import comparison_table, list_strategies, show_strategy
from atoll.strategies import RECIPES
from tests.report.runs import small_comparison


def shown(what: RenderableType, width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(what)
    return file.getvalue()


def test_a_comparison_fits_a_terminal() -> None:
    text = shown(comparison_table(read_folder(small_comparison())))
    assert "allreduce:every=4" in text
    assert "not reached" in text
    assert "±" in text
    assert "…" not in text


def test_strategies() -> None:
    text = shown(list_strategies(), 120)
    for name, recipe in RECIPES.items():
        assert name in text
        told = shown(show_strategy(recipe), 120)
        assert recipe.paper in told
        assert all(setting.name in told for setting in recipe.settings)
