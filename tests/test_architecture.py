"""Imports point one way, and only the world touches the world."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import atoll

SOURCE = Path(atoll.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# From the bottom up: a part imports only from those before it.
ORDER = [
    "errors",
    "settings",
    "seeds",
    "state",
    "jobs",
    "version",
    "network",
    "trace",
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


def test_tests_mirror_the_source() -> None:
    tests = Path(__file__).parent
    # Tested through what is built of them.
    untested = {
        "__main__.py",
        "version.py",
        "cli/fuzz.py",  # tests/fuzz/test_run.py
        "cli/node.py",  # tests/test_nodes.py
        "cli/probe.py",  # tests/test_docs.py
        "world/base.py",
        "world/sim/connection.py",
        "world/sim/finishes.py",
        "world/emulate/enter.py",
        "world/emulate/namespaces.py",
        "world/emulate/switch.py",
        "world/live/carrier.py",
        "world/live/registry.py",
        "world/live/join.py",
        "world/live/hello.py",
        "world/live/process.py",
        "world/live/session.py",
        "script/launch.py",
        "script/process.py",
        "script/replica.py",
        "training/own.py",
        "script/agent.py",
        "training/optimizer_state.py",
        "world/live/tunnel.py",
        "world/live/routes.py",
        "world/live/world.py",
        "world/sim/reach.py",
        "world/sim/deadlock.py",
        "world/sim/wires.py",
        "strategies/replica.py",
        "runs/emulated_node.py",
        "runs/node.py",  # tests/runs/test_simulated.py, test_emulated.py, test_live.py
        "training/parts.py",
        "strategies/talk.py",
        "strategies/rounds/parts.py",
        "strategies/rounds/driver.py",
        "strategies/rounds/models.py",  # tests/strategies/rounds/test_here.py
        "strategies/rounds/gradients.py",
        "strategies/recipes.py",
    }
    for path in MODULES:
        if path.name != "__init__.py" and str(path.relative_to(SOURCE)) not in untested:
            mirrored = tests / path.relative_to(SOURCE).parent / f"test_{path.name}"
            assert mirrored.exists(), f"{path.name} has no {mirrored.relative_to(tests)}"
