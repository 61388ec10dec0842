from typer.testing import CliRunner

from atoll.cli import app


def test_strategies() -> None:
    assert "gossip" in CliRunner().invoke(app, ["strategies"]).output
    assert "pushsum" in CliRunner().invoke(app, ["strategies", "gossip"]).output
