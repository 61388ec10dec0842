"""How long it takes to hand a large model to a machine that joins, live (benchmarks/defects.py).

python -m benchmarks.defect_handover MILLIONS FOLDER [INVITATION]    # one of the two nodes
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import atoll
from atoll.trace import Joined, ViewChanged, read_trace
from benchmarks.common import markdown
from benchmarks.defect_nodes import wait_for

STEP_S = 0.1
LONGEST_S = 240.0


def handover(millions: int) -> str:
    """Two processes: one trains, the other joins; neither has rounds to do meanwhile."""
    command = [sys.executable, "-m", "benchmarks.defect_handover", str(millions)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        running = [subprocess.Popen([*command, folder])]
        try:
            wait_for("an invitation", (place / "invitation").exists)
            running.append(subprocess.Popen([*command, folder, (place / "invitation").read_text()]))
            wait_for("the model", lambda: _joined(place), LONGEST_S)
            began, done = _joined(place)[0]
        finally:
            for process in running:
                process.kill()
                process.wait()
    size = 4 * millions
    return markdown(
        ["model", "seconds from the view to the model", "MB a second"],
        [[f"{millions} M parameters, {size} MB", f"{done - began:.1f}", f"{size / (done - began):.0f}"]],
    )


def _joined(place: Path) -> list[tuple[float, float]]:
    """When the second node's view began, and when it had the model."""
    trace = place / "n1.jsonl"
    events = list(read_trace(trace)) if trace.exists() else []
    done = [event.at for event in events if isinstance(event, Joined)]
    views = [event.at for event in events if isinstance(event, ViewChanged) and len(event.members) == 2]
    return [(views[0], done[0])] if done else []


def _take_part(millions: int, folder: Path, invitation: str | None) -> None:
    torch.set_num_threads(1)
    model = nn.Linear(1000, 1000 * millions, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    listen = None if invitation else "127.0.0.1:0"
    with atoll.join("diloco:every=100000", out=folder, invitation=invitation, listen=listen) as run:
        run.wrap(model, optimizer)
        if not invitation:
            (folder / "part").write_text(run.invitation)
            (folder / "part").rename(folder / "invitation")
        while True:
            time.sleep(STEP_S)
            optimizer.step()  # without gradients nothing changes; a step is a step


if __name__ == "__main__":
    _take_part(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
