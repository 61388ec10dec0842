from pathlib import Path

from tests.cli.command import atoll


def test_lists_and_shows_networks() -> None:
    listed = atoll("networks")
    assert listed.returncode == 0
    assert "triangle" in listed.stdout
    shown = atoll("networks", "nine", "--seed", "3", "--seconds", "60")
    assert shown.returncode == 0
    assert "seed 3, the first 60 s" in shown.stdout


def test_a_users_own_file(tmp_path: Path) -> None:
    (tmp_path / "home.toml").write_text(
        '[[node]]\nnames = ["registry", "attic"]\n[[link]]\namong = "*"\ntrace = "lte.txt"\n'
    )
    (tmp_path / "lte.txt").write_text("0 5\n30 0\n40 2\n60 0\n")
    shown = atoll("networks", "home.toml", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "[attic]" in shown.stdout
    assert "registry>attic" in shown.stdout
