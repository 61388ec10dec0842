"""The command as a user runs it: a process of its own."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll.cli import app, main
from tests.interrupt import interrupt

ATOLL = Path(sys.executable).with_name("atoll")


def atoll(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ATOLL, *arguments], capture_output=True, text=True, cwd=folder, check=False, timeout=240)


def test_lists_and_shows_networks() -> None:
    listed = atoll("networks")
    assert listed.returncode == 0
    assert "triangle" in listed.stdout
    shown = atoll("networks", "nine", "--seed", "3", "--seconds", "60")
    assert shown.returncode == 0
    assert "seed 3, the first 60 s" in shown.stdout


def test_a_users_own_file(tmp_path: Path) -> None:
    (tmp_path / "home.toml").write_text(
        '[[node]]\nnames = ["desk", "attic"]\n[[link]]\namong = "*"\ntrace = "lte.txt"\n'
    )
    (tmp_path / "lte.txt").write_text("0 5\n30 0\n40 2\n60 0\n")
    shown = atoll("networks", "home.toml", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "[attic]" in shown.stdout
    assert "desk>attic" in shown.stdout


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


def test_islands_are_planned_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planned = CliRunner().invoke(app, ["plan", "triangle", "--node-memory", "100kB"])
    assert planned.exit_code == 0, planned.output
    assert "digits: 3 layers" in planned.output
    assert "every node its own island" in planned.output
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    trained = CliRunner().invoke(app, ["run", "triangle", "--islands", "0+1/2", "--limit", "8"])
    assert trained.exit_code == 0, trained.output
    assert "allreduce:every=8,overlap" in trained.output
    assert "Islands from 0 s: 0 0-" in (tmp_path / "report" / "report.html").read_text()
    wrong = CliRunner().invoke(app, ["plan", "triangle", "--out", "nowhere/plan.png"])
    assert "there is no folder nowhere" in str(wrong.exception)


def test_compare_report_and_json(tmp_path: Path) -> None:
    arguments = [
        "compare",
        "triangle",
        "-s",
        "allreduce:every=4",
        "-s",
        "none",
        "--seeds",
        "1",
        "--limit",
        "8",
        "--json",
        "out.json",
    ]
    compared = atoll(*arguments, folder=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "allreduce:every=4" in compared.stdout
    assert "Report: report/report.html" in compared.stdout
    assert "2 of 2 runs done: " in compared.stdout  # it is no terminal
    told = json.loads((tmp_path / "out.json").read_text())
    assert {result["strategy"] for result in told["results"]} == {"allreduce:every=4", "none"}
    page = (tmp_path / "report" / "report.html").read_bytes()
    (tmp_path / "report" / "report.html").unlink()
    again = atoll("report", "report", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "report" / "report.html").read_bytes() == page


def test_a_failed_run_is_told_in_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("atoll.compare.Plan.check", lambda _: None)  # so that a run fails, not the command
    strategies = ["-s", "none", "-s", "unheard-of"]
    told = CliRunner().invoke(app, ["compare", "perfect:2", *strategies, "--seeds", "1", "--limit", "2", "--jobs", "1"])
    assert told.exit_code == 1
    assert "1 of 3 runs failed; their tracebacks: report/traces/*.failed.json" in told.output
    assert "Report: report/report.html" in told.output
    [kept] = (tmp_path / "report" / "traces").glob("*.failed.json")
    assert "StrategyError" in json.loads(kept.read_text())["traceback"]


def test_run_shows_one(tmp_path: Path) -> None:
    shown = atoll("run", "perfect:2", "--strategy", "allreduce", "--seed", "3", "--limit", "8", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "allreduce" in shown.stdout


def test_strategies() -> None:
    assert "gossip" in CliRunner().invoke(app, ["strategies"]).output
    assert "pushsum" in CliRunner().invoke(app, ["strategies", "gossip"]).output


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


def test_interrupting_keeps_what_is_finished(tmp_path: Path) -> None:
    command = [
        str(ATOLL),
        "compare",
        "perfect:2",
        "-s",
        "allreduce",
        "-s",
        "none",
        "--shards",
        "label",
        "--limit",
        "100000",
        "--seeds",
        "1",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True)
    finished = tmp_path / "report" / "traces" / "strategy.allreduce.seed0.jsonl"
    for _ in range(600):  # `none` never arrives on label shards
        if finished.exists() and '"run_ended"' in finished.read_text()[-200:]:
            break
        time.sleep(0.1)
    told, _ = interrupt(process)
    assert process.returncode == 130
    assert "finished runs are kept" in " ".join(told.split())
    assert all('"run_ended"' in path.read_text()[-200:] for path in (tmp_path / "report" / "traces").glob("*.jsonl"))
