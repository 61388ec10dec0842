"""The examples run, small."""

import re
import sys
from pathlib import Path

import pytest
import torch

from tests.torchrun import run_until_it_ends

EXAMPLES = Path(__file__).parents[1] / "examples"


def python(*arguments: str | Path) -> str:
    return run_until_it_ends([sys.executable, *map(str, arguments)])


def test_mnist_with_none_is_the_script_without_atoll(tmp_path: Path) -> None:
    """To the bit."""
    text = (EXAMPLES / "mnist.py").read_text()
    joined, changes = re.subn(r'strategy="[^"]*"', 'strategy="none"', text)
    assert changes == 1
    kept = [line for line in text.splitlines() if not re.search(r"(import atoll|atoll\.join|run\.wrap)", line)]
    plain = re.sub(r"run\.(shard|measure)\((.*)\)", r"\2", "\n".join(kept))
    assert "run." not in plain
    assert "atoll." not in plain
    for name, source in (("joined", joined), ("plain", plain)):
        (tmp_path / f"{name}.py").write_text(source)
        python(tmp_path / f"{name}.py", "--epochs", "2", "--save", tmp_path / f"{name}.pt")
    theirs = torch.load(tmp_path / "plain.pt", weights_only=True)
    for name, value in torch.load(tmp_path / "joined.pt", weights_only=True).items():
        assert torch.equal(value, theirs[name]), name


def test_a_gpt_that_is_saved_and_goes_on(tmp_path: Path) -> None:
    """With its schedule."""
    small = ["--width", "16", "--layers", "1", "--test-every", "4"]
    kept = [*small, "--checkpoint", str(tmp_path / "node.safetensors")]
    first = python(EXAMPLES / "char_gpt.py", "--steps", "8", *kept)
    assert [line.split(":")[0] for line in first.splitlines()] == ["step 4", "step 8"]
    (rest,) = python(EXAMPLES / "char_gpt.py", "--steps", "12", *kept).splitlines()
    whole = python(EXAMPLES / "char_gpt.py", "--steps", "12", *small).splitlines()
    assert rest.startswith("step 12: loss ")
    assert rest.partition(", rate ")[2] == whole[-1].partition(", rate ")[2] != ""


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("torchrun_ddp.py", ("--epochs", "1")), ("torchrun_fsdp.py", ("--width", "16", "--layers", "1", "--steps", "10"))],
)
def test_under_torchrun(script: str, arguments: tuple[str, ...]) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    told = python(*torchrun, EXAMPLES / script, *arguments, "--listen", "127.0.0.1:0")
    assert "invitation: atoll1-" in told


def test_a_model_that_nodes_hold_together(tmp_path: Path) -> None:
    small = ["--width", "16", "--blocks", "2", "--updates", "50", "--save", str(tmp_path / "model.pt")]
    told = python(EXAMPLES / "stages.py", *small)
    assert told.startswith("n0: update 50, layers 0 to 4, loss ")
    assert "1.norm.weight" in torch.load(tmp_path / "model.pt", weights_only=True)
