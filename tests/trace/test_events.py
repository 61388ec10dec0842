from pathlib import Path

from atoll.trace import Event, RunStarted, Transferred


def test_every_event_is_documented() -> None:
    document = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
    shipped = [kind for kind, made in Event.kinds.items() if made.__module__ == "atoll.trace.events"]
    assert {"run_started", "transferred"} <= set(shipped)
    for kind in shipped:
        assert f"`{kind}`" in document
        for field in Event.kinds[kind].__dataclass_fields__:
            if field not in ("kind", "kinds"):
                assert f"`{field}`" in document, f"{kind}.{field}"


def test_kinds_are_named_for_their_classes() -> None:
    assert (RunStarted.kind, Transferred.kind) == ("run_started", "transferred")
