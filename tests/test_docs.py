"""What the documents show is true: examples run and print what is printed, links lead somewhere."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from atoll.network import load_network, parse_network, preset_names
from atoll.world.faults import load_faults

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def examples(path: Path) -> list[tuple[str, str]]:
    """Python blocks with the plain block that follows each: what it prints."""
    return re.findall(r"```python\n((?:(?!```).)*)```\n+```\n(.*?)```", path.read_text(), re.DOTALL)


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
