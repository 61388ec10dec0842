import json
from pathlib import Path

from tests.cli.command import atoll


def test_compare_report_and_json(tmp_path: Path) -> None:
    arguments = [
        "compare",
        "triangle",
        "-s",
        "allreduce:every=4",
        "-s",
        "none",
        "--seeds",
        "1",
        "--limit",
        "8",
        "--json",
        "out.json",
    ]
    compared = atoll(*arguments, folder=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "allreduce:every=4" in compared.stdout
    assert "Report: report/report.html" in compared.stdout
    assert "2 of 2 runs done: " in compared.stdout  # it is no terminal
    told = json.loads((tmp_path / "out.json").read_text())
    assert {result["strategy"] for result in told["results"]} == {"allreduce:every=4", "none"}
    page = (tmp_path / "report" / "report.html").read_bytes()
    (tmp_path / "report" / "report.html").unlink()
    again = atoll("report", "report", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "report" / "report.html").read_bytes() == page
