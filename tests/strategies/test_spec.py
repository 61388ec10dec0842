import pickle

import pytest

from atoll.errors import StrategyError
from atoll.strategies import RECIPES, parse_strategy


def test_names_settings_and_switches() -> None:
    for text in (
        "none",
        "allreduce",
        "allreduce:every=4,via=ring",
        "allreduce:ring,overlap",
        "gossip:aware,pushsum",
        "ssp:bound=2",
    ):
        assert parse_strategy(text).name == text


def test_a_strategy_is_a_value() -> None:
    """Equal when equal, printed as what a user writes, and sent to another process."""
    assert parse_strategy("allreduce:every=1,star") == parse_strategy("allreduce:via=star")
    assert parse_strategy("allreduce:every=2") != parse_strategy("allreduce")
    for name in RECIPES:
        strategy = parse_strategy(name)
        assert str(strategy) == name
        assert strategy.composition == parse_strategy(name).composition
        assert pickle.loads(pickle.dumps(strategy)) == strategy  # noqa: S301 - its own
        assert hash(strategy) == hash(parse_strategy(name))
    text = "diloco:rate=0.5,every=7,overlap,codec=int8,robust=median,ahead=shared"
    assert parse_strategy(str(parse_strategy(text))).composition == parse_strategy(text).composition


def test_settings_that_recipes_share_are_the_same_everywhere() -> None:
    shared = {setting.name: setting for setting in RECIPES["allreduce"].settings}
    for name in ("overlap", "patience", "steady", "handover"):
        having = [recipe for recipe in RECIPES.values() if name in {setting.name for setting in recipe.settings}]
        assert len(having) > 8
        assert all(shared[name] in recipe.settings for recipe in having)


def test_every_recipe_says_what_it_is() -> None:
    for recipe in RECIPES.values():
        assert recipe.about.endswith(".")
        assert recipe.rule
        assert recipe.paper


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allredcue", "there is no strategy 'allredcue'; did you mean 'allreduce'?"),
        ("allreduce:evry=4", "strategy 'allreduce:evry=4': there is no setting 'evry'; did you mean 'every'?"),
        ("allreduce:every=x", "strategy 'allreduce:every=x', every: expected a whole number of at least 1, not 'x'"),
        ("allreduce:every=-1", "strategy 'allreduce:every=-1', every: expected a whole number of at least 1, not '-1'"),
        (
            "allreduce:via=rign",
            (
                "strategy 'allreduce:via=rign', via: "
                "expected one of auto|star|gather|direct|ring|tree|hd|best, not 'rign'; did you mean 'ring'?"
            ),
        ),
        (
            "allreduce:every",
            "strategy 'allreduce:every': 'every' wants a value: every=… (a whole number of at least 1)",
        ),
        ("allreduce:rign", "strategy 'allreduce:rign': there is no setting 'rign'; did you mean 'ring'?"),
        ("allreduce:every=1,every=2", "strategy 'allreduce:every=1,every=2': 'every' is set twice"),
        ("gossip:aware=maybe", "strategy 'gossip:aware=maybe', aware: expected yes or no, not 'maybe'"),
        (
            "allreduce:codec=inf8",
            "strategy 'allreduce:codec=inf8', codec: there is no codec 'inf8'; did you mean 'int8'?",
        ),
        (
            "allreduce:ring,codec=topk",
            (
                "strategy 'allreduce:ring,codec=topk': 'ring' adds up values on their way, and what this codec sends "
                "cannot be added: expected via=gather"
            ),
        ),
        ("none:every=2", "strategy 'none:every=2': there is no setting 'every'; it has none"),
    ],
)
def test_mistakes_are_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(StrategyError) as refused:
        parse_strategy(text)
    assert str(refused.value) == message


def test_push_sum_with_a_codec_is_refused() -> None:
    with pytest.raises(StrategyError, match="expected merge=drift"):
        parse_strategy("gossip:pushsum,codec=int8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("allreduce:every=0", "a whole number of at least 1"),
        ("diloco:fragments=0", "a whole number of at least 1"),
        ("diloco:momentum=2", "a number from 0 to 0.999"),
        ("diloco:rate=-1", "a number of at least 0"),
        ("fda:share=1.5", "a number from 0.01 to 1"),
        ("flexible:ratio=5", "a number from 0 to 1"),
        ("allreduce:every=nan", "a whole number of at least 1"),
        ("diloco:rate=nan", "a number of at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(text: str, expected: str) -> None:
    with pytest.raises(StrategyError, match=f"expected {expected}, not"):
        parse_strategy(text)


def test_parts_that_do_not_go_together_are_refused_when_read() -> None:
    with pytest.raises(StrategyError, match="strategy 'allreduce:gradient,overlap,shared': `ahead` is about models"):
        parse_strategy("allreduce:gradient,overlap,shared")
    with pytest.raises(StrategyError, match="mixtures"):
        parse_strategy("gossip:codec=dct")
