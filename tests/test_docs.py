"""What the documents show is true: examples run and print what is printed, links lead somewhere, commands work."""

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import pytest

import atoll
from atoll.cli import app, main
from atoll.codecs import CODECS
from atoll.collectives import COLLECTIVES
from atoll.network import load_network, parse_network, preset_names
from atoll.strategies import RECIPES
from atoll.training import TASKS
from atoll.world.faults import load_faults
from tests import commands
from tests.training.idx import write_small_mnist

T = TypeVar("T")
R = TypeVar("R")

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def examples(path: Path) -> list[tuple[str, str]]:
    """Python blocks with the plain block that follows each: what it prints."""
    return re.findall(r"```python\n((?:(?!```).)*)```\n+```\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.fixture
def _nothing_stays_registered() -> Iterator[None]:
    """Examples add strategies, codecs, collectives, tasks and commands."""
    registries: list[dict[str, Any]] = [RECIPES, CODECS, COLLECTIVES, TASKS]
    before, commands = [dict(each) for each in registries], list(app.registered_commands)
    yield
    for registry, known in zip(registries, before, strict=True):
        registry.clear()
        registry.update(known)
    app.registered_commands[:] = commands


@pytest.mark.usefixtures("_nothing_stays_registered")
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if examples(path)], ids=lambda path: path.name)
def test_examples_print_what_the_document_shows(path: Path) -> None:
    for code, expected in examples(path):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(path), "exec"), {"__name__": "example"})  # noqa: S102 - our own documents
        assert printed.getvalue() == expected


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_network_format_example_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "networks.md").read_text()
    [example] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    for name in ("van.up.gz", "van.down.gz"):
        (tmp_path / name).write_text("0 2\n10 0\n")
    network = parse_network(example, name="example", folder=tmp_path)
    assert network.node_names == ("desk1", "desk2", "attic", "van")
    assert len(network.links) == 5


def test_every_preset_is_described() -> None:
    text = (ROOT / "docs" / "networks.md").read_text()
    for name in preset_names():
        assert f"`{name}`" in text
        assert load_network(name).about


def test_fault_scripts_to_begin_with_are_valid() -> None:
    scripts = list((ROOT / "examples").glob("*.toml"))
    assert scripts
    for script in scripts:
        assert load_faults(script, load_network("triangle").node_names)


def test_the_api_page_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    names = re.findall(r"^::: atoll\.(\w+)$", text, re.MULTILINE)
    assert sorted([*names, "__version__"]) == sorted(atoll.__all__)


def test_the_site_is_not_built_with_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    """By the Makefile's own command: an option may undo `--strict`, as `--quiet` does."""
    [options] = re.findall(r"^\t\$\(BIN\)/mkdocs (build .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml", "examples", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    with (tmp_path / "docs" / "tasks.md").open("a") as page:
        page.write("\n[a page](nowhere.md), [a part](faults.md#nowhere)\n")
    command = [sys.executable, "-m", "mkdocs", *options.split()]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    told = ended.stdout + ended.stderr
    assert ended.returncode == 1, told
    assert "Aborted with 2 warnings" in told
    assert "'nowhere.md'" in told
    assert "'#nowhere'" in told


# Commands ---


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands are run: with what the documents say that a user has."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "some.txt").write_text("What is said three times is true. " * 700)
    write_small_mnist(tmp_path / "mnist")
    [task] = re.findall(r"```python\n(# my_task.py.*?)```", (ROOT / "docs" / "tasks.md").read_text(), re.DOTALL)
    (tmp_path / "my_task.py").write_text(task)
    (tmp_path / "my-network.toml").write_text('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatency_ms = 5\n')
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_task", raising=False)
    return tmp_path


def _do_here(do: Callable[[T], R], items: Iterable[T], **_: object) -> Iterator[tuple[T, R]]:
    """What `do_all` does, in this process: starting others takes longer than a short run."""
    for item in items:
        yield item, do(item)


@pytest.mark.parametrize("block", commands.blocks())
def test_commands_run(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("atoll.runs.batch", "atoll.fuzz.run"):
        monkeypatch.setattr(f"{module}.do_all", _do_here)
    for command in commands.blocks()[block]:
        words = commands.quick(command.words)
        if words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], cwd=folder, check=True, timeout=120)
            continue
        assert words[0] == "atoll", f"{command.text}: add a rule or an exception to tests/commands.py"
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0, f"{command.document}: {command.text} (run as {shlex.join(words)})"


@pytest.mark.parametrize("name", commands.live_groups())
def test_commands_over_real_links_run(name: str, folder: Path) -> None:
    """Who begins a run goes on until all others have joined it and left; alone it leaves by itself."""
    first, *others = commands.live_groups()[name]
    words = (commands.lasting if others else commands.quick)(first.words)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [{"127.0.0.1:0": address, commands.PUBLIC: address}.get(word, word) for word in words]
    log = folder / "first.log"
    with log.open("wb") as output, _started(words, output) as process:
        invitation = _wait_for(lambda: re.search(r"atoll1-\S+", log.read_text()), process, log).group()
        for other in others:
            words = [invitation if word == commands.INVITATION else word for word in commands.quick(other.words)]
            ended = subprocess.run(_argv(words), capture_output=True, text=True, check=False, timeout=120)
            assert ended.returncode == 0, f"{other.document}: {other.text}:\n{ended.stdout}{ended.stderr}"
        if not others:
            assert process.wait(120) == 0, log.read_text()


def _argv(words: list[str]) -> list[str]:
    return [sys.executable, *(["-m", "atoll"] if words[0] == "atoll" else []), *words[1:]]


@contextlib.contextmanager
def _started(words: list[str], output: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(_argv(words), stdout=output, stderr=output, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(look: Callable[[], re.Match[str] | None], process: "subprocess.Popen[bytes]", log: Path) -> re.Match[str]:
    until = time.monotonic() + 120
    while not (found := look()):
        assert time.monotonic() < until, log.read_text()
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    return found


def test_every_rule_and_exception_for_commands_is_needed() -> None:
    found = commands.documented()
    for beginning, reason in commands.EXCEPTIONS.items():
        assert reason
        assert any(command.text.startswith(beginning) for command in found), f"no document says {beginning!r} any more"
    changed = set()
    for command in found:
        words = command.words if not command.is_exception else []
        for about, rule in commands.RULES.items() if words else ():
            after = rule(words)
            if after != words:
                changed.add(about)
            words = after
    assert changed == set(commands.RULES), "a rule that no command needs"


def test_every_command_is_in_a_block_that_is_run() -> None:
    """None stands in an indented block, or in one without a language, where nobody would run it."""
    for path in commands.DOCUMENTS:
        text = re.sub(r"```\w+\n.*?```", "", path.read_text(), flags=re.DOTALL)
        hidden = re.findall(
            r"^(?:    |```\n)\$? ?((?:\.venv/bin/|python |atoll |make |torchrun ).*)$", text, re.MULTILINE
        )
        assert not hidden, f"{path.name}: put {hidden[0]!r} in a block of ```sh"


def test_the_demo_is_a_comparison() -> None:
    """So that running the comparison is running the demo."""
    assert re.search(r"^demo:.*\n\t\$\(BIN\)/atoll compare\n", (ROOT / "Makefile").read_text(), re.MULTILINE)
