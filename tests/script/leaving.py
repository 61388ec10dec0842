"""A script for tests: trains for ever.

leaving.py FOLDER [--strategy S] [--handler] [--join INVITATION] [--once]

It leaves the run's strategy in FOLDER/strategy; with --handler it has a handler of SIGTERM of its own, which has it
save and end; with --once it ends at once.
"""

import argparse
import signal
import time
from pathlib import Path

import torch
from torch import nn

import atoll

if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--strategy")
    options.add_argument("--handler", action="store_true")
    options.add_argument("--join")
    options.add_argument("--launched", action="store_true")
    options.add_argument("--once", action="store_true")
    arguments = options.parse_args()
    asked: list[int] = []
    if arguments.handler:
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    said = {"strategy": arguments.strategy} if arguments.strategy else {}
    listen = None if arguments.join else "127.0.0.1:0"
    place = {} if arguments.launched else {"listen": listen, "invitation": arguments.join, "out": arguments.folder}
    torch.set_num_threads(1)
    model = nn.Linear(4, 2)
    run = atoll.join(**said, **place)
    _, optimizer = run.wrap(model, torch.optim.SGD(model.parameters(), 0.01))
    (arguments.folder / "strategy.part").write_text(run.strategy)
    (arguments.folder / "strategy.part").replace(arguments.folder / "strategy")
    while not asked and not arguments.once:
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
    if asked:
        run.checkpoint(arguments.folder / "node")
