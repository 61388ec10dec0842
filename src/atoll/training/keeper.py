"""Keepers: a node's whole state in a file, written during training, so that a power cut costs half a minute."""

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path

import numpy as np

from atoll.state import Save, Saved
from atoll.training.checkpoint import RunIdentity, read_node, write_node
from atoll.world.base import World

__all__ = ["KEEP_EVERY_S", "Keeper"]

log = logging.getLogger("atoll")

KEEP_EVERY_S = 30.0


class Keeper:
    """Writes a node's state to a file regularly, at a step boundary, and at the end.

    The state is copied where training runs, and written in a thread of its own: neither the event loop nor training
    waits for the disk.  A write error is logged once, and the write is tried again.

    Args:
        path: the file.
        identity: the identity that the file must match.
        world: the node's world.
    """

    def __init__(self, path: Path, identity: RunIdentity, world: World) -> None:
        self._path = path
        self._identity = identity
        self._world = world
        self._kept_at = world.now
        self._save: Save | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_failing = False

    def load(self) -> Saved | None:
        """The saved state, if there is a file.

        Raises:
            CheckpointError: it cannot be read, is incomplete, or belongs to something else.
        """
        return read_node(self._path, self._identity) if self._path.exists() else None

    def at_boundary(self, save: Save) -> Awaitable[None] | None:
        """Called between two steps; training awaits the result."""
        self._save = save
        if self._writing is not None or self._world.now - self._kept_at < KEEP_EVERY_S:
            return None
        return self._keep(save)

    async def _keep(self, save: Save) -> None:
        self._kept_at = self._world.now
        saved = await save()
        # A strategy's state also changes outside training, so it is copied at once.
        saved = {name: value.copy() if name.startswith("talk/") else value for name, value in saved.items()}
        copied = await self._world.aside(lambda: _copy(saved))
        self._writing = asyncio.create_task(self._write(copied), name="writing a checkpoint")

    async def _write(self, saved: Saved) -> None:
        try:
            await asyncio.to_thread(write_node, self._path, saved, self._identity)
        except OSError as error:
            if not self._is_failing:
                told = error.strerror or error
                log.warning("%s: cannot write the checkpoint (%s): training continues", self._path, told)
            self._is_failing = True
        else:
            if self._is_failing:
                log.warning("%s: the checkpoint is written again", self._path)
            self._is_failing = False
        finally:
            self._writing = None

    async def finish(self) -> None:
        """Called when training has ended: writes the final state."""
        if self._writing:
            await self._writing
        if self._save:
            saved = await self._save()
            await self._write(await self._world.aside(lambda: _copy(saved)))


def _copy(saved: Saved) -> Saved:
    return {name: np.array(value) for name, value in saved.items()}
