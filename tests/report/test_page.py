import re
from html.parser import HTMLParser
from pathlib import Path

from atoll.report.page import write_page
from atoll.report.results import Comparison, read_folder
from tests.report.runs import small_comparison


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.images += tag == "svg"
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and value and not value.startswith("#"):
                self.found.append(value)


def test_the_page_stands_alone(tmp_path: Path) -> None:
    write_page(read_folder(small_comparison()), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    page = Links()
    page.feed(text)
    assert page.found == []  # nothing is fetched from anywhere
    assert page.images == 3 + 2  # curves, bars, bytes; a timeline a strategy
    assert "allreduce:every=4" in text
    assert not re.search(r"<script", text)


def test_the_same_traces_give_the_same_page(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_page(read_folder(small_comparison()), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_page_where_nobody_arrived(tmp_path: Path) -> None:
    found = read_folder(small_comparison())
    alone = Comparison.of(run for run in found.results if run.role == "ideal" or run.strategy == "none")
    write_page(alone, tmp_path / "report.html")
    assert "0 of 2 seeds arrived" in (tmp_path / "report.html").read_text()
