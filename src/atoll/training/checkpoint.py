"""Checkpoints: a node's state, in a file that is complete or does not exist.

A file is safetensors, with the state of the node's parts, its identity, and a digest over everything.  It is written to
a temporary file and then renamed.  A run's checkpoint is a folder with a file for each node, renamed in the same way.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from atoll.errors import CheckpointError
from atoll.state import Saved, note, read_note

__all__ = ["TRACE", "RunIdentity", "forget", "latest", "read_node", "read_run", "write_node", "write_run"]

FORMAT = 1
RUN, TRACE = "run.safetensors", "trace.jsonl"
RunIdentity = dict[str, Any]
"""The values that must match for a checkpoint to fit: the task, the strategy, the nodes, …"""


def write_node(path: Path, saved: Saved, identity: RunIdentity) -> None:
    """Writes one node's state."""
    arrays = {name: np.ascontiguousarray(values) for name, values in saved.items()}
    about = json.dumps(identity, sort_keys=True)
    metadata = {"atoll checkpoint": str(FORMAT), "identity": about, "digest": _digest(arrays, about)}
    beside = path.with_name(path.name + ".part")
    try:
        safetensors.numpy.save_file(arrays, beside, metadata)
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except (OSError, safetensors.SafetensorError) as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)  # a full disk needs the space
        raise error if isinstance(error, OSError) else OSError(str(error)) from None


def read_node(path: Path, identity: RunIdentity) -> Saved:
    """Reads one node's state.

    Raises:
        CheckpointError: it cannot be read, is incomplete, or belongs to something else.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from None
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path}: incomplete, or not a checkpoint ({error}); use an earlier one") from None
    if metadata.get("atoll checkpoint") != str(FORMAT):
        raise CheckpointError(f"{path}: is not a checkpoint that this version of Atoll has written")
    about = metadata.get("identity", "{}")
    if metadata.get("digest") != _digest(arrays, about):
        raise CheckpointError(f"{path}: is damaged: its digest is not that of its content; use an earlier one")
    theirs = json.loads(about)
    for key, expected in json.loads(json.dumps(identity)).items():
        if theirs.get(key) != expected:
            there = theirs.get(key)
            told = f"{path}: is of another run: {key} is {there!r} there, and {expected!r} here"
            if key == "node" and there is not None:
                told = f"{path}: is of another node: {there} wrote it, and this is {expected}; with the same key file"
                told += " (--key; key= in a script) a machine gets its old seat back"
            raise CheckpointError(told)
    return arrays


def write_run(
    folder: Path, at: float, nodes: dict[str, Saved], run: Saved, identity: RunIdentity, *, trace: Path
) -> None:
    """Writes the states of all nodes at one time, the state of the run as a whole, and its trace so far."""
    folder.mkdir(parents=True, exist_ok=True)
    beside, place = folder / ".part", folder / f"{at:012.3f}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    shutil.copyfile(trace, beside / TRACE)
    for name, saved in nodes.items():
        write_node(beside / f"node {_safe(name)}.safetensors", saved, {**identity, "node": name})
    files = {path.name: _digest_of_file(path) for path in beside.iterdir()}
    write_node(beside / RUN, {**run, "files": note(files)}, identity)
    shutil.rmtree(place, ignore_errors=True)
    beside.replace(place)


def forget(folder: Path) -> None:
    """Removes the checkpoints of an earlier run, so that none is mistaken for one of the new run."""
    for place in _places(folder):
        shutil.rmtree(place)


def _places(folder: Path) -> list[Path]:
    return [each for each in folder.glob("*") if each.is_dir() and re.fullmatch(r"\d+\.\d+", each.name)]


def latest(folder: Path) -> Path:
    """The last checkpoint of a run."""
    found = _places(folder)
    if not found:
        raise CheckpointError(f"{folder}: there is no checkpoint here; expected what --checkpoint wrote")
    return max(found, key=lambda each: float(each.name))


def read_run(place: Path, names: tuple[str, ...], identity: RunIdentity) -> tuple[float, dict[str, Saved], Saved]:
    """Reads the time, the states of the nodes that were live, and the state of the run as a whole."""
    run = read_node(place / RUN, identity)
    for name, digest in read_note(run["files"]).items():
        path = place / name
        if not path.exists():
            raise CheckpointError(f"{path}: is missing; remove {place} to resume from the previous checkpoint")
        if _digest_of_file(path) != digest:
            raise CheckpointError(
                f"{path}: is damaged, or of another time; remove {place} to resume from the previous checkpoint"
            )
    paths = {name: place / f"node {_safe(name)}.safetensors" for name in names}
    nodes = {name: read_node(path, {**identity, "node": name}) for name, path in paths.items() if path.exists()}
    return float(place.name), nodes, run


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _safe(name: str) -> str:
    """A file name for a node's name; different names give different files."""
    return "".join(c if c.isalnum() or c in "-_." else f"%{ord(c):x}" for c in name)


def _digest(arrays: Saved, about: str) -> str:
    digest = hashlib.blake2b(about.encode(), digest_size=16)
    for name in sorted(arrays):
        values = arrays[name]
        digest.update(json.dumps([name, str(values.dtype), list(values.shape)]).encode())
        digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
