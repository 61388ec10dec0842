"""A process that is one node and runs a user's script: `python -m atoll.script.process FILE`.

The file is a node file (`atoll.world.live.process`); its program is the script's path.  The node is
ready when the script calls `atoll.join()`.  SIGTERM ends the script as `sys.exit` would.
"""

import contextlib
import runpy
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from atoll.config import RunConfig
from atoll.runs.emulated_node import slowness
from atoll.script.launch import Launch, launch
from atoll.world.faults import parse_faults
from atoll.world.live.process import NodeFile, open_world
from atoll.world.live.world import LiveWorld

__all__ = ["run_script"]


def run_script(path: str, arguments: list[str]) -> None:
    """Runs a script as `python PATH ARGUMENTS` would."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    runpy.run_path(path, run_name="__main__")


def _run(file: NodeFile) -> None:
    settings, config = file.settings, RunConfig.from_dict(file.settings["config"])

    @contextlib.asynccontextmanager
    async def open_here(_: str) -> AsyncIterator[LiveWorld]:
        async with open_world(file) as (world, begin):
            world.slowness = slowness(world, parse_faults(settings["faults"], world.names))
            await begin()
            yield world

    place = Launch(open_world=open_here, strategy=config.strategy, task=config.task, alone=len(file.names) == 1)
    launch(place)
    signal.signal(signal.SIGTERM, _leave)
    run_script(file.program, list(config.script[1:]))


def _leave(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


if __name__ == "__main__":
    _run(NodeFile.read(Path(sys.argv[1])))
