"""Which strategy a run has, what is refused before it begins, and seats."""

from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import atoll
from atoll.cli import app
from atoll.errors import CheckpointError, StrategyError
from atoll.strategies import DEFAULT_STRATEGY
from tests.script.test_signals import LEAVING, NODE, started

LENDERS = "selsync:lenders=0.25,lend=0.5"
TOLD = r"strategy 'selsync:lenders=0.25,lend=0.5': lenders share .*leave out lenders"


@pytest.mark.parametrize(
    ("of_command", "of_script", "expected"),
    [
        (["-s", "vrl:every=3"], ["--strategy", "gossip"], "vrl:every=3"),
        ([], ["--strategy", "allreduce:every=5"], "allreduce:every=5"),
        ([], [], DEFAULT_STRATEGY),
    ],
)
def test_the_command_goes_before_the_script(
    tmp_path: Path, of_command: list[str], of_script: list[str], expected: str
) -> None:
    script = [str(LEAVING), str(tmp_path), "--launched", "--once", *of_script]
    with started([*NODE, *of_command, "--out", str(tmp_path), *script], tmp_path) as process:
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "strategy").read_text() == expected
    assert f'"strategy":"{expected}"' in (tmp_path / "n0.jsonl").read_text()


def test_examples_cannot_be_lent_by_scripts() -> None:
    """It is said before anything begins, with the name of the setting."""
    with pytest.raises(StrategyError, match=TOLD):
        atoll.join(LENDERS)
    for command in (["node", "--listen", "127.0.0.1:0"], ["run", "triangle", "--world", "emulate"]):
        ended = CliRunner().invoke(app, [*command, "-s", LENDERS, "--", str(LEAVING), "nowhere"])
        assert isinstance(ended.exception, StrategyError)
        assert "leave out lenders" in str(ended.exception)
    with atoll.join("selsync"):
        pass


def test_a_checkpoint_is_of_no_seat(tmp_path: Path) -> None:
    """Who was killed and comes back, may be in another seat, or in another run with more of them."""
    path = tmp_path / "node"

    def wrapped(run: atoll.Run, inputs: int = 4) -> tuple[nn.Linear, torch.optim.AdamW]:
        torch.manual_seed(len(run.name))
        model = nn.Linear(inputs, 2)
        return run.wrap(model, torch.optim.AdamW(model.parameters(), 0.1))

    with atoll.join("allreduce:every=2", listen="127.0.0.1:0", seats=4) as first:
        assert first.name == "n0"
        model, optimizer = wrapped(first)
        for _ in range(5):
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
        first.checkpoint(path)
    with (
        atoll.join("allreduce:every=2", listen="127.0.0.1:0", seats=6) as other,
        atoll.join(invitation=other.invitation) as back,
    ):
        assert back.name == "n1"
        again, memory = wrapped(back)
        assert back.resume(path)
        assert torch.equal(again.weight, model.weight)
        assert torch.equal(memory.state[again.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
        assert (back.steps, back.global_step) == (5, 5)
        assert back._agent is not None
        assert back._agent._replica is not None
        assert back._agent._replica.work.tolist() == [0, 5, 0, 0, 0, 0]
    with atoll.join("allreduce:every=2") as run:
        wrapped(run, inputs=5)
        with pytest.raises(CheckpointError, match=r"another model: 'weight' is \(2, 4\) there, and \(2, 5\) here"):
            run.resume(path)
