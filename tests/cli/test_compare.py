import json
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll.cli import app
from tests.cli.command import ATOLL, atoll
from tests.interrupt import interrupt


def test_a_failed_run_is_told_in_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("atoll.compare.ComparisonPlan.check", lambda _: None)  # so that a run fails, not the command
    monkeypatch.setattr("atoll.config.RunConfig.__post_init__", lambda _: None)
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


def test_a_run_writes_the_configuration_that_repeats_it(tmp_path: Path) -> None:
    """Byte for byte; what the command line says wins over the file."""
    first = atoll("run", "perfect:2", "-s", "allreduce:every=2", "--seed", "3", "--limit", "3", folder=tmp_path)
    assert first.returncode == 0, first.stderr
    traces = tmp_path / "report" / "traces"
    [config] = traces.glob("strategy.*.toml")
    kept = (tmp_path / "kept.toml").write_text(config.read_text()), config.with_suffix(".jsonl").read_bytes()
    again = atoll("run", "kept.toml", "--save", "model.safetensors", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert config.with_suffix(".jsonl").read_bytes() == kept[1]
    assert (tmp_path / "model.safetensors").exists()


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
