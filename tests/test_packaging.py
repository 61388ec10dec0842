"""What users install: the wheel's contents, the dependencies that it declares, and what importing it costs."""

import json
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import atoll
from atoll.cli import main
from atoll.errors import needs_extra

ROOT = Path(__file__).parents[1]
CORE = {"cryptography", "msgspec", "networkx", "numpy", "rich", "safetensors", "torch", "typer"}


def output(*command: str | Path, folder: Path) -> str:
    """What a command prints; if it fails, the test does and shows it."""
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_wheel_is_complete_and_works_in_a_fresh_environment(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")
    output(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path, ROOT, folder=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = {str(path.relative_to(source)) for path in (source / "atoll").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} <= names
    assert "atoll/py.typed" in names
    assert any(name.endswith("/triangle.toml") for name in names), "the presets"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {"atoll", f"atoll-{atoll.__version__}.dist-info"}

    # A new environment with the wheel in it, and the dependencies of this one: a path in a .pth file is not searched
    # for further .pth files, so the editable install of this environment is not seen from there.
    environment = tmp_path / "environment"
    output(sys.executable, "-m", "venv", "--without-pip", environment, folder=tmp_path)
    python = environment / "bin" / "python"
    output(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, folder=tmp_path)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    command = environment / "bin" / "atoll"
    assert output(command, "--version", folder=empty) == f"atoll {atoll.__version__}\n"
    assert "triangle" in output(command, "networks", folder=empty)
    script = (
        "import atoll, importlib.metadata as m; print(atoll.__file__, atoll.__version__, m.version('atoll'), sep='\\n')"
    )
    where, version, declared = output(python, "-c", script, folder=empty).split()
    assert Path(where).is_relative_to(packages)
    assert version == declared == atoll.__version__


def needed(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """A distribution and all that it needs, by the metadata of what is installed."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(name), extras)]
    while waiting:
        each, extras = waiting.pop()
        if (each, extras) in seen:
            continue
        seen.add((each, extras))
        try:
            lines = metadata.requires(each) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform
        for requirement in map(Requirement, lines):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {each for each, _ in seen}


def test_the_core_needs_what_it_declares_and_no_more(tmp_path: Path) -> None:
    """With nothing installed but the core's dependencies all modules can be imported, except some of reports."""
    declared = map(Requirement, metadata.requires("atoll") or [])
    assert {each.name for each in declared if each.marker is None} == CORE, "a new dependency is a decision"
    allowed = needed("atoll")
    assert {"matplotlib", "scikit-learn", "scipy", "tensorboard"}.isdisjoint(allowed)
    blocked = [
        name
        for name, distributions in metadata.packages_distributions().items()
        if allowed.isdisjoint(map(canonicalize_name, distributions))
    ]
    assert {"matplotlib", "pytest", "scipy", "sklearn"} <= set(blocked)
    script = f"""
import importlib, json, pkgutil, sys
sys.modules.update(dict.fromkeys({blocked!r}))
import atoll
failed = {{}}
for module in pkgutil.walk_packages(atoll.__path__, "atoll."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        failed[module.name] = error.name.split(".")[0]
print(json.dumps(failed))
"""
    failed = json.loads(output(sys.executable, "-c", script, folder=tmp_path))
    assert set(failed.values()) == {"matplotlib"}
    assert {name.rpartition(".")[0] for name in failed} == {"atoll.report"}


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        (["report", "."], "matplotlib", "report"),
        (["plan", "triangle"], "matplotlib", "report"),
        (["compare", "--seeds", "1"], "matplotlib", "report"),
        (["compare", "--seeds", "1"], "sklearn", "tasks"),
    ],
    ids=["report", "plan", "compare", "task"],
)
def test_a_missing_extra_is_named_with_its_command(
    command: list[str], missing: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = [name for name, module in sys.modules.items() if name.startswith("atoll.") and hasattr(module, "Figure")]
    for name in figures:
        monkeypatch.delitem(sys.modules, name)  # those that draw are imported again, as in a new process
    for name in [missing, *(each for each in sys.modules if each.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["atoll", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"pip install 'atoll[{extra}]'" in capsys.readouterr().err


def test_a_mistake_of_ours_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"atoll\.nowhere"), needs_extra("report", "a page"):
        __import__("atoll.nowhere")


def test_extras_of_all_are_all_extras() -> None:
    extras = set(metadata.metadata("atoll").get_all("Provides-Extra") or [])
    assert extras == {"all", "dev", "docs", "report", "tasks", "tensorboard"}
    assert needed("atoll", frozenset({"report", "tasks", "tensorboard"})) == needed("atoll", frozenset({"all"}))


def test_importing_atoll_is_quick(tmp_path: Path) -> None:
    """It does not load torch, and takes far less time than torch; processor time, since machines are busy."""
    script = """
import sys, time
begun = time.process_time()
import atoll
atoll_s = time.process_time() - begun
assert "torch" not in sys.modules
import torch
print(atoll_s, time.process_time() - begun - atoll_s)
"""
    times = [tuple(map(float, output(sys.executable, "-c", script, folder=tmp_path).split())) for _ in range(2)]
    atoll_s, torch_s = map(min, zip(*times, strict=True))
    assert atoll_s < 0.5 * torch_s
    assert atoll_s < 0.5
