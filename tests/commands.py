"""The shell commands of README.md and docs/*.md, and how each is run in a few seconds.

Every command of a fenced `sh` or `console` block is run, in the order of its document, after these changes (`RULES`)
and no others.  What cannot be run at all is in `EXCEPTIONS`, with the reason.  A test looks that no rule and no
exception is left over.
"""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["EXCEPTIONS", "INVITATION", "RULES", "Command", "blocks", "documented", "lasting", "live_groups", "quick"]

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
INVITATION = "atoll1-…"
LISTEN, PUBLIC = "0.0.0.0:7700", "alpha.example.org:7700"

EXCEPTIONS = {
    "git clone": "it needs the address of the repository, and a network",
    "python3 -m venv": "it installs packages from the network",
    "make test": "it runs these tests",
    "torchrun": "tests/test_examples.py runs the same script under torchrun",
}
"""How commands begin that are not run, and why."""

Words = list[str]


@dataclass(frozen=True)
class Command:
    """A command as a document shows it."""

    document: str
    block: int
    text: str

    @property
    def words(self) -> Words:
        return shlex.split(self.text)

    @property
    def is_exception(self) -> bool:
        return any(self.text.startswith(beginning) for beginning in EXCEPTIONS)

    @property
    def is_live(self) -> bool:
        """Whether it takes part in a run over real links, or asks one."""
        return not self.is_exception and bool({"--listen", "--join", "probe"} & set(self.words))


def documented() -> list[Command]:
    """All of them, in order."""
    found = []
    for path in DOCUMENTS:
        name = str(path.relative_to(ROOT))
        for block, (kind, text) in enumerate(re.findall(r"```(sh|console)\n(.*?)```", path.read_text(), re.DOTALL)):
            for line in text.splitlines():
                prompt = re.match(r"\w*\$ ", line)
                if line.strip() and (prompt or kind == "sh"):  # else it is what a command prints
                    command = re.sub(r"\s+#.*$", "", line[prompt.end() if prompt else 0 :]).strip()
                    found.append(Command(name, block, command))
    return found


def blocks() -> dict[str, list[Command]]:
    """Commands that need no other machine, by the block that they stand in; what was run before is left out."""
    found: dict[str, list[Command]] = {}
    seen: set[tuple[str, ...]] = set()
    for command in documented():
        what = tuple(quick(command.words))
        if not command.is_exception and not command.is_live and what not in seen:
            seen.add(what)
            found.setdefault(f"{command.document}-{command.block}", []).append(command)
    return found


def live_groups() -> dict[str, list[Command]]:
    """Who begins a run, and those after it who join it or ask it; a run that begins as another one does is left out."""
    groups: list[list[Command]] = []
    for command in documented():
        if command.is_live and "--listen" in command.words and "--join" not in command.words:
            groups.append([command])
        elif command.is_live:
            groups[-1].append(command)
    groups.sort(key=len, reverse=True)
    found: dict[str, list[Command]] = {}
    seen: set[tuple[str, ...]] = set()
    for group in groups:
        first = tuple(quick(group[0].words))
        if len(group) > 1 or first not in seen:
            found[f"{group[0].document}-{group[0].block}-{len(found)}"] = group
        seen.add(first)
    return found


# The rules ---


def _with(words: Words, option: str, value: str, *, at: int | None = None) -> Words:
    """With an option's value replaced, or with the option at a place (the end unless given)."""
    if option in words:
        place = words.index(option) + 1
        return [*words[:place], value, *words[place + 1 :]]
    at = len(words) if at is None else at
    return [*words[:at], option, value, *words[at:]]


def _is(words: Words, *names: str) -> bool:
    return words[0] == "atoll" and words[1] in names


def _has_script(words: Words) -> bool:
    return any(word.endswith(".py") for word in words)


def _program(words: Words) -> Words:
    return [words[0].removeprefix(".venv/bin/"), *words[1:]]


def _demo(words: Words) -> Words:
    return ["atoll", "compare"] if words == ["make", "demo"] else words


def _seeds(words: Words) -> Words:
    return _with(words, "--seeds", "1", at=2) if _is(words, "compare", "fuzz") else words


def _jobs(words: Words) -> Words:
    return _with(words, "--jobs", "1", at=2) if _is(words, "compare", "fuzz") else words


def _limit(words: Words) -> Words:
    """Virtual seconds, as many as the faults of a script need; real ones where the network is emulated."""
    seconds = "60" if "--faults" in words else "3" if "emulate" in words else "2"
    return _with(words, "--limit", seconds, at=2) if _is(words, "compare", "run") else words


def _checkpoints(words: Words) -> Words:
    """One within the limit; who resumes goes on behind it."""
    if "--checkpoint-every" not in words:
        return words
    words = _with(words, "--checkpoint-every", "1")
    return _with(words, "--limit", "4") if "--resume" in words else words


def _strategies(words: Words) -> Words:
    """Of a comparison that takes long, one strategy."""
    if not _is(words, "compare") or not {"--faults", "emulate"} & set(words):
        return words
    if "-s" not in words:
        return _with(words, "-s", "allreduce:every=4", at=2)
    first = words.index("-s")
    kept = words[first + 2 :]
    while "-s" in kept:
        place = kept.index("-s")
        kept = [*kept[:place], *kept[place + 2 :]]
    return [*words[: first + 2], *kept]


def _epochs(words: Words) -> Words:
    return _with(words, "--epochs", "1") if _has_script(words) else words


def _steps(words: Words) -> Words:
    return _with(words, "--steps", "5") if _is(words, "node") and not _has_script(words) else words


def _addresses(words: Words) -> Words:
    return [{LISTEN: "127.0.0.1:0"}.get(word, word) for word in words]


def _data(words: Words) -> Words:
    return [{"FOLDER": "text"}.get(word, word) for word in words]


RULES: dict[str, Callable[[Words], Words]] = {
    "programs are found in the environment of the tests": _program,
    "`make demo` is what the Makefile says it is": _demo,
    "one seed": _seeds,
    "one job: in the process of the test": _jobs,
    "a short limit, after all faults of a script": _limit,
    "a checkpoint a second": _checkpoints,
    "one strategy where a comparison takes long": _strategies,
    "scripts train for one epoch": _epochs,
    "nodes leave after five steps, unless others join them": _steps,
    "nodes listen on loopback": _addresses,
    "FOLDER is one with a text": _data,
}


def quick(words: Words) -> Words:
    """The same command, as fast as it can be."""
    for rule in RULES.values():
        words = rule(words)
    return words


def lasting(words: Words) -> Words:
    """The same for a node that others join: it goes on until it is ended."""
    words = quick(words)
    if "--epochs" in words:
        words = _with(words, "--epochs", "1000")
    if "--steps" in words:
        place = words.index("--steps")
        words = [*words[:place], *words[place + 2 :]]
    return words
