"""Imports point one way, and only the world touches the world."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import atoll

SOURCE = Path(atoll.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# From the bottom up: a part imports only from those before it.
ORDER = [
    "errors",
    "plugins",
    "settings",
    "seeds",
    "state",
    "jobs",
    "version",
    "network",
    "trace",
    "memory",
    "vectors",
    "world",
    "membership",
    "codecs",
    "collectives",
    "strategies",
    "training",
    "islands",
    "config",
    "runs",
    "script",
    "report",
    "compare",
    "fuzz",
    "nodes",
    "cli",
    "__main__",
]

# What only the world and the command line may use, each with what to use instead.
FORBIDDEN_MODULES = {
    "time",
    "socket",
    "ssl",
    "select",
    "selectors",
    "subprocess",
    "secrets",
    "threading",
    "uuid",
}
FORBIDDEN_NAMES = {
    "os.environ",
    "os.getenv",
    "os.urandom",
    "datetime.now",
    "datetime.utcnow",
    "datetime.datetime.now",
    "date.today",
    "numpy.random",
    "np.random",
    "torch.manual_seed",
    "torch.seed",
}
RANDOM_CLASSES = {"Random"}
SEEDED = ("np.random.default_rng", "np.random.Generator")


def part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def violations(path: Path, text: str) -> list[str]:
    """What in a module goes against the rules."""
    tree = ast.parse(text)
    found: list[str] = []
    here = part(path)
    if here != "__init__":
        for name in imports(tree):
            if name.startswith("atoll."):
                there = name.split(".")[1]
                if there in ORDER and ORDER.index(there) > ORDER.index(here):
                    found.append(f"{here} imports {there}")
    if here in ("world", "cli"):
        return found
    names = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names -= {name for name in names if name.startswith(SEEDED)} | {
        "np.random"
    }  # (the seeded ones contain the module's name)
    found += [f"uses {name}" for name in sorted(names) if any(name.startswith(bad) for bad in FORBIDDEN_NAMES)]
    found += [
        f"uses {name}"
        for name in sorted(names)
        if name.startswith("random.") and name.split(".")[1] not in RANDOM_CLASSES
    ]
    for name in imports(tree):
        if name.split(".")[0] in FORBIDDEN_MODULES or name in FORBIDDEN_NAMES:
            found.append(f"imports {name}")
        if name.startswith("random.") and name.split(".")[1] not in RANDOM_CLASSES:
            found.append(f"imports {name}")
    return found


LONGEST = 400


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def file_imports(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which files import which, those behind `TYPE_CHECKING` and inside functions too."""
    trees = {name: ast.parse(text) for name, text in sources.items()}
    return {name: {each for each in imports(tree) if each in trees and each != name} for name, tree in trees.items()}


def circles(found: dict[str, set[str]]) -> list[list[str]]:
    graph = nx.DiGraph([(name, other) for name, others in found.items() for other in others])
    return [sorted(each) for each in nx.strongly_connected_components(graph) if len(each) > 1]


def test_files_import_one_way() -> None:
    sources = {module_name(path): path.read_text() for path in MODULES if path.name != "__init__.py"}
    assert circles(file_imports(sources)) == []


def test_a_circle_is_found_wherever_it_hides() -> None:
    hidden = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from atoll.x.b import B"
    assert circles(file_imports({"atoll.x.a": hidden, "atoll.x.b": "from atoll.x.a import A"})) == [
        ["atoll.x.a", "atoll.x.b"]
    ]
    inside = "def f():\n    from atoll.x.b import B"
    assert circles(file_imports({"atoll.x.a": inside, "atoll.x.b": "import atoll.x.a"})) != []
    assert circles(file_imports({"atoll.x.a": "from atoll.x.b import B", "atoll.x.b": ""})) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_rules(path: Path) -> None:
    assert part(path) in [*ORDER, "__init__"], "a new part: say in ORDER where it stands"
    assert violations(path, path.read_text()) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import time", "imports time"),
        ("from time import monotonic", "imports time"),
        ("import random\nrandom.random()", "uses random.random"),
        ("from random import shuffle", "imports random.shuffle"),
        ("import os\nos.environ['X']", "uses os.environ"),
        ("from os import environ", "imports os.environ"),
        ("import socket", "imports socket"),
        ("import numpy as np\nnp.random.rand()", "uses np.random.rand"),
        ("from atoll.world import World", "network imports world"),
    ],
)
def test_the_rules_can_fail(text: str, what: str) -> None:
    assert any(what in violation for violation in violations(SOURCE / "network" / "x.py", text))


def test_seeded_generators_are_allowed() -> None:
    assert violations(SOURCE / "network" / "x.py", "import random\nrandom.Random(3)") == []


COVERED_BY = {
    "__main__.py": "cli/test_app.py",
    "version.py": "test_packaging.py",
    "cli/fuzz.py": "fuzz/test_run.py",
    "cli/node.py": "test_nodes.py",
    "cli/probe.py": "test_docs.py",
    "codecs/kernels/codebooks.py": "codecs/test_kernels.py",
    "codecs/kernels/device.py": "codecs/test_kernels.py",
    "codecs/kernels/scaled.py": "codecs/test_kernels.py",
    "codecs/kernels/selected.py": "codecs/test_kernels.py",
    "collectives/lengths.py": "collectives/test_judge.py",
    "islands/examine.py": "islands/test_node.py",
    "islands/exchanges.py": "islands/test_node.py",
    "membership/view.py": "membership/test_group.py",
    "runs/emulated_node.py": "runs/test_emulated.py",
    "runs/node.py": "runs/test_emulated.py",
    "script/agent.py": "script/test_run.py",
    "strategies/rounds/exchange.py": "strategies/rounds/test_blocks.py",
    "strategies/rounds/fragment.py": "strategies/rounds/test_blocks.py",
    "strategies/changes.py": "strategies/test_deltas.py",
    "script/launch.py": "script/test_joining.py",
    "script/process.py": "script/test_run.py",
    "script/replica.py": "script/test_run.py",
    "strategies/recipes.py": "strategies/test_spec.py",
    "strategies/replica.py": "training/test_replica.py",
    "strategies/shared.py": "strategies/test_spec.py",
    "strategies/talk.py": "training/test_drive.py",
    "strategies/rounds/driver.py": "strategies/rounds/test_rounds.py",
    "strategies/rounds/gradients.py": "strategies/rounds/test_rounds.py",
    "strategies/rounds/models.py": "strategies/rounds/test_here.py",
    "strategies/rounds/outcome.py": "strategies/rounds/test_rounds.py",
    "strategies/rounds/composition.py": "strategies/test_spec.py",
    "trace/island_events.py": "trace/test_events.py",
    "training/tasks/registry.py": "training/tasks/test_digits.py",
    "training/optimizer_state.py": "script/test_optimizers.py",
    "training/own.py": "training/test_replica.py",
    "world/base.py": "world/sim/test_world.py",
    "world/emulate/enter.py": "world/emulate/test_supervisor.py",
    "world/emulate/namespaces.py": "world/emulate/test_supervisor.py",
    "world/emulate/switch.py": "world/emulate/test_supervisor.py",
    "world/live/lane.py": "world/live/test_strands.py",
    "world/live/hello.py": "world/live/test_wrong_frames.py",
    "world/live/join.py": "runs/test_live.py",
    "world/live/listener.py": "world/live/test_strangers.py",
    "world/live/process.py": "world/emulate/test_supervisor.py",
    "world/live/registry.py": "runs/test_live.py",
    "world/live/routes.py": "world/live/test_host.py",
    "world/live/session.py": "world/live/test_host.py",
    "world/live/tunnel.py": "world/live/test_wrong_frames.py",
    "world/live/world.py": "world/live/test_host.py",
    "world/sim/connection.py": "world/sim/test_links.py",
    "world/sim/deadlock.py": "world/sim/test_simulation.py",
    "world/sim/finishes.py": "world/sim/test_links.py",
    "world/sim/rates.py": "world/sim/test_links.py",
    "world/sim/reach.py": "world/sim/test_peer.py",
    "world/sim/wires.py": "world/sim/test_links.py",
    "world/sim/wiring.py": "world/sim/test_links.py",
}
"""Files that are tested through what is built of them, by which test."""


def test_no_name_stands_for_two_things() -> None:
    """Classes and types, wherever they are."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names: list[str] = []
            if isinstance(node, ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names = [node.target.id]
            for name in names:
                if re.fullmatch("[A-Z][A-Za-z]*[a-z][A-Za-z]*", name):
                    found.setdefault(name, set()).add(str(path.relative_to(SOURCE)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_every_file_has_a_test() -> None:
    tests = Path(__file__).parent
    files = {str(path.relative_to(SOURCE)) for path in MODULES if path.name != "__init__.py"}
    assert COVERED_BY.keys() <= files, "a file that is gone"
    for name in sorted(files):
        own = str(Path(name).parent / f"test_{Path(name).name}")
        assert (tests / COVERED_BY.get(name, own)).exists(), f"{name} has no {own}, and no other test that names it"
        assert name not in COVERED_BY or not (tests / own).exists(), f"{name} has a test of its own"
