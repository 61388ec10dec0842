import io

import pytest
from rich.console import Console

from atoll.network import Network, load_network, parse_network, preset_names
from atoll.report.networks import list_networks, show_network


def shown(network: Network, width: int = 100, seconds: float | None = None) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(show_network(network, seed=0, seconds=seconds, width=width))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_list_names_every_preset() -> None:
    console = Console(file=io.StringIO(), width=150)
    networks = [load_network(name) for name in preset_names()]
    console.print(list_networks(networks))
    file = console.file
    assert isinstance(file, io.StringIO)
    for network in networks:
        assert network.name in file.getvalue()
        assert network.about in file.getvalue()


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("width", [60, 80, 160])
def test_every_preset_can_be_shown(name: str, width: int) -> None:
    network = load_network(name)
    text = shown(network, width)
    assert max(map(len, text.splitlines())) <= width
    for point in [*network.node_names, *network.hubs]:
        assert point in text


def test_a_drawing_a_table_and_a_timeline() -> None:
    text = shown(load_network("triangle"))
    assert "[0]" in text
    assert "30 ± 3 ms" in text
    assert "10 Mbit/s" in text
    assert "up 30 s, down 10 s on average" in text
    assert text.count("░") > 5


def test_the_timeline_is_the_weather_of_the_seed() -> None:
    """The outage of `partition` from 20 s to 80 s takes 60 of 120 columns."""
    text = shown(load_network("partition"), width=160, seconds=120)
    row = next(line for line in text.splitlines() if line.startswith("0~3 ") and "█" in line)
    bar = row.split()[1]
    assert bar.count("░") == pytest.approx(len(bar) / 2, abs=1)
    assert bar.index("░") == pytest.approx(len(bar) / 6, abs=1)


def test_rates_have_heights() -> None:
    text = shown(load_network("flexible-staircase"), width=160)
    row = next(line for line in text.splitlines() if line.startswith("0~switch ") and "█" in line)
    assert "▁" in row
    assert "25 Mbit/s" in row


def test_a_steady_network_has_no_timeline() -> None:
    assert "What changes" not in shown(load_network("perfect"))


def test_too_many_to_draw() -> None:
    assert "too many to draw" in shown(load_network("perfect:500"))


def test_uneven_directions_memory_and_access() -> None:
    text = shown(
        parse_network(
            "[[node]]\ncount = 2\nmemory_gb = 8\nup_mbps = 5\n"
            '[[link]]\namong = "*"\nrate_mbps = [1, 2000]\noutages = [[5, inf]]',
            name="x",
        ),
        width=140,
    )
    assert "1 Mbit/s →, 2 Gbit/s ←" in text
    assert "8 GB" in text
    assert "5 Mbit/s / no limit" in text
    assert "down from 5 s permanently" in text
