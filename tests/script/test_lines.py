import logging

import pytest

from atoll.script.lines import Lines, say
from atoll.trace import Joined, ReachChanged


def configure_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script that does not configure logging: pytest does."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


def test_who_comes_and_goes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    configure_nothing(monkeypatch)
    lines = Lines()
    lines.watch(ReachChanged(at=1.0, node="n0", peer="n2", reachable=False))  # it was never here
    lines.watch(ReachChanged(at=2.0, node="n0", peer="n1", reachable=True))
    lines.watch(Joined(at=2.5, node="n0", view="1.n1"))
    lines.watch(ReachChanged(at=3.0, node="n0", peer="n1", reachable=False))
    lines.watch(ReachChanged(at=7.5, node="n0", peer="n1", reachable=True))
    lines.end()
    lines.watch(ReachChanged(at=8.0, node="n0", peer="n1", reachable=False))
    assert capsys.readouterr().err.splitlines() == [
        "atoll: n0 reaches n1; 2 nodes are online",
        "atoll: n0 has the run's model now",
        "atoll: n0 has lost n1; it is alone",
        "atoll: n0 reaches n1 again, after 4.5 s; 2 nodes are online",
    ]
    assert not logging.getLogger().handlers
    assert not logging.getLogger("atoll").handlers
    assert logging.getLogger("atoll").level == logging.NOTSET


def test_a_script_may_have_silence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    configure_nothing(monkeypatch)
    monkeypatch.setattr(logging.getLogger("atoll"), "level", logging.WARNING)
    say("something")
    assert capsys.readouterr().err == ""


def test_what_a_script_has_configured_decides(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    say("not wanted")
    with caplog.at_level(logging.INFO):
        say("%s is wanted", "this")
    assert [record.getMessage() for record in caplog.records] == ["this is wanted"]
    assert capsys.readouterr().err == ""
