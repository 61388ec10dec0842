"""The command as a user runs it: a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ATOLL = Path(sys.executable).with_name("atoll")


def atoll(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ATOLL, *arguments], capture_output=True, text=True, cwd=folder, check=False, timeout=60)


def test_lists_and_shows_networks() -> None:
    listed = atoll("networks")
    assert listed.returncode == 0
    assert "triangle" in listed.stdout
    shown = atoll("networks", "nine", "--seed", "3", "--seconds", "60")
    assert shown.returncode == 0
    assert "seed 3, the first 60 s" in shown.stdout


def test_a_users_own_file(tmp_path: Path) -> None:
    (tmp_path / "home.toml").write_text(
        '[[node]]\nnames = ["desk", "attic"]\n[[link]]\namong = "*"\ntrace = "lte.txt"\n'
    )
    (tmp_path / "lte.txt").write_text("0 5\n30 0\n40 2\n60 0\n")
    shown = atoll("networks", "home.toml", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "[attic]" in shown.stdout
    assert "desk>attic" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["networks", "trianlge"], "atoll: there is no network 'trianlge'; did you mean 'triangle'?"),
        (["networks", "missing.toml"], "atoll: network file missing.toml: No such file or directory"),
        (
            ["networks", "bad.toml"],
            "atoll: bad.toml, link 1: there is no key 'latncy_ms' here; did you mean 'latency_ms'?",
        ),
    ],
)
def test_mistakes_get_one_line_and_status_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "bad.toml").write_text('[[node]]\ncount = 2\n[[link]]\namong = "*"\nlatncy_ms = 3\n')
    refused = atoll(*arguments, folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith(message)
    assert refused.stderr.count("\n") == 1


def test_version() -> None:
    assert atoll("--version").stdout.startswith("atoll 0.")
