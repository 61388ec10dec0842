"""Other packages add strategies, codecs and tasks."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.codecs import parse_codec
from atoll.codecs.base import CODECS
from atoll.errors import PluginError, StrategyError
from atoll.plugins import load_plugins
from atoll.strategies import RECIPES, parse_strategy
from atoll.training.tasks import load_task
from atoll.training.tasks.registry import TASKS

MODULE = '''
from atoll.codecs.base import CODECS
from atoll.settings import Count
from atoll.strategies import Strategy
from atoll.strategies.parts.part import part
from atoll.strategies.parts.when import Every
from atoll.strategies.rounds import Meeting, Rounds
from atoll.strategies.spec import recipe
from atoll.training.tasks.registry import TASKS

CODECS["eight_of_mine"] = CODECS["int8"]
TASKS["digits_of_mine"] = TASKS["digits"]


@recipe
def mine(meeting: Meeting, *, every: Count = 3) -> Strategy:
    """Averages every few steps.

    Rule: x ← mean(x).
    Paper: –.
    """
    return Rounds(when=part(Every, every), meeting=meeting)
'''


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages with a plugin."""
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[atoll.plugins]\nmine = a_plugin_of_mine\n")
    (tmp_path / "a_plugin_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    load_plugins.cache_clear()
    yield tmp_path
    load_plugins.cache_clear()
    sys.modules.pop("a_plugin_of_mine", None)
    RECIPES.pop("mine", None)
    CODECS.pop("eight_of_mine", None)
    TASKS.pop("digits_of_mine", None)


@pytest.mark.usefixtures("installed")
def test_names_of_plugins_are_known() -> None:
    assert str(parse_strategy("mine:every=5")) == "mine:every=5"
    assert parse_codec("eight_of_mine") == parse_codec("int8")
    assert load_task("digits_of_mine").name == "digits"
    with pytest.raises(StrategyError, match="did you mean 'mine'"):
        parse_strategy("mime")


def test_a_plugin_that_fails_is_named(installed: Path) -> None:
    (installed / "a_plugin_of_mine.py").write_text("raise RuntimeError('no licence')")
    with pytest.raises(PluginError, match=r"plugin 'mine': a_plugin_of_mine .*RuntimeError: no licence.*uninstall"):
        parse_strategy("mine")
