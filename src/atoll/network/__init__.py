"""The description of a network: nodes, links and their weather, as frozen values, from TOML files and presets."""

from atoll.network.bandwidth import BandwidthTrace, read_bandwidth_trace
from atoll.network.files import load_network, parse_network, preset_names
from atoll.network.model import Fading, Gaps, Link, Network, Node, Outage, Phase, UpDown, Walk, Way

__all__ = [
    "BandwidthTrace",
    "Fading",
    "Gaps",
    "Link",
    "Network",
    "Node",
    "Outage",
    "Phase",
    "UpDown",
    "Walk",
    "Way",
    "load_network",
    "parse_network",
    "preset_names",
    "read_bandwidth_trace",
]
