"""What a user got wrong is told in one line, whichever the command."""

import sys
from pathlib import Path

import pytest

from atoll.cli import main
from tests.cli.command import atoll


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["networks", "trianlge"], "atoll: there is no network 'trianlge'; did you mean 'triangle'?"),
        (["networks", "missing.toml"], "atoll: network file missing.toml: No such file or directory"),
        (
            ["networks", "bad.toml"],
            "atoll: bad.toml, link 1: there is no key 'latncy_ms' here; did you mean 'latency_ms'?",
        ),
    ],
)
def test_mistakes_get_one_line_and_status_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "bad.toml").write_text('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatncy_ms = 3\n')
    refused = atoll(*arguments, folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith(message)
    assert refused.stderr.count("\n") == 1


def test_version() -> None:
    assert atoll("--version").stdout.startswith("atoll 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "-s", "allredcue"], "atoll: there is no strategy 'allredcue'; did you mean 'allreduce'?"),
        (["compare", "--shards", "idd"], "atoll: there are no shards 'idd'; did you mean 'iid'?"),
        (["compare", "--task", "mnist"], "atoll: task 'mnist' needs data"),
        (["compare", "--task", "mnist", "--data", "nowhere"], "atoll: task 'mnist': nowhere is not a folder"),
        (["compare", "--device", "nowhere"], "atoll: device 'nowhere': torch cannot compute there"),
        (["compare", "--seeds", "0"], "atoll: Invalid value for '--seeds'"),
        (["strategies", "gosip"], "atoll: there is no strategy 'gosip'; did you mean 'gossip'?"),
        (["report", "nowhere"], "atoll: nowhere: expected traces (*.jsonl) in it"),
        (["run", "triangle", "--checkpoint-every", "5"], "atoll: --checkpoint-every: expected --checkpoint FOLDER too"),
        (
            ["compare", "-s", "vrl:warmup=-1"],
            "atoll: strategy 'vrl:warmup=-1', warmup: expected a whole number of at least 0",
        ),
        (["plan", "nine", "--model-memory", "6"], "atoll: --model-memory: '6' has no unit: write 6GB, 6MB or 6kB"),
        (["bogus"], "atoll: No such command 'bogus'."),
        (["node"], "atoll: expected --listen HOST:PORT to begin a run, or --join INVITATION to join one"),
        (["node", "--listen", "here"], "atoll: --listen: expected HOST:PORT, not 'here'"),
        (["node", "--join", "hello"], "atoll: an invitation begins with 'atoll1-'"),
        (["node", "--listen", "127.0.0.1:0", "-s", "nonsense"], "atoll: there is no strategy 'nonsense'"),
        (
            ["node", "--listen", "127.0.0.1:0", "--islands", "n0+n1"],
            "atoll: islands 'n0+n1': nodes that come and go form them",
        ),
        (
            ["node", "--listen", "127.0.0.1:0", "--checkpoint", "no/kept"],
            "atoll: --checkpoint no/kept: there is no folder no",
        ),
    ],
)
def test_mistakes_before_anything_runs(
    tmp_path: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_ends_the_command(tmp_path: Path) -> None:
    refused = atoll("bogus", folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == "atoll: No such command 'bogus'.\n"
