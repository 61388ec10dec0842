from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll.cli import app


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
