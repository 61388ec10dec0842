"""Machines and the links between them, from the description of a network.

A rate that varies counts as its mean.
"""

import itertools
import math
from collections.abc import Sequence

import networkx as nx
import numpy as np

from atoll.islands.cut import BACKWARD, FORWARD, Layer, Machine
from atoll.islands.plan import MachineLinks
from atoll.network import Link, Network, Way
from atoll.world.sim.physics import PACKET_BYTES, SEGMENT_BYTES, loss_limit

__all__ = ["survey"]


def survey(
    network: Network, layers: Sequence[Layer], *, batch: int, memory_bytes: float = math.inf
) -> tuple[tuple[Machine, ...], MachineLinks]:
    """The machines of a network, and the links between them.

    Args:
        network: the description.
        layers: the layers of the model that a node's declared step time is for.
        batch: samples of that step.
        memory_bytes: the memory of nodes that do not declare theirs.
    """
    step = (FORWARD + BACKWARD) * batch * sum(layer.flops for layer in layers)
    machines = tuple(
        Machine(
            step / node.step_s if node.step_s else math.inf,
            memory_bytes if node.memory_bytes is None else float(node.memory_bytes),
            node.name,
        )
        for node in network.nodes
    )
    graph = nx.DiGraph()
    graph.add_nodes_from([*network.node_names, *network.hubs])
    for link in network.links:
        for ends, way in (((link.a, link.b), link.there), ((link.b, link.a), link.back)):
            graph.add_edge(*ends, latency=_latency_s(way), rate=_rate(way), loss=way.loss, there=_there(link))
    count = len(machines)
    latency, rate, there = np.full((count, count), math.inf), np.zeros((count, count)), np.full((count, count), 1e-9)
    for row, node in enumerate(network.nodes):
        routes = nx.single_source_dijkstra_path(graph, node.name, weight="latency")
        for column, other in enumerate(network.nodes):
            route = routes.get(other.name)
            if route is None:
                continue
            hops = [graph.edges[pair] for pair in itertools.pairwise(route)]
            latency[row, column] = sum(hop["latency"] for hop in hops)
            loss = 1 - math.prod(1 - hop["loss"] for hop in hops)
            rates = [node.up_bps, other.down_bps, *(hop["rate"] for hop in hops)]
            most = 8 * loss_limit(loss, 2 * latency[row, column])
            rate[row, column] = min(most, *rates) / 8 * SEGMENT_BYTES / PACKET_BYTES
            there[row, column] = math.prod(hop["there"] for hop in hops)
    return machines, MachineLinks(latency, rate, there)


def _latency_s(way: Way) -> float:
    if way.walk:
        return (way.walk.low_s + way.walk.high_s) / 2
    if way.phases:
        return sum(phase.latency_s for phase in way.phases) / len(way.phases)
    return way.latency_s


def _rate(way: Way) -> float:
    """Bits a second, on average."""
    if way.trace:
        return float(np.mean(way.trace.rates_bps))
    if way.fading:
        return float(np.mean(way.fading.quantiles_bps))
    if way.phases:
        return sum(phase.rate_bps for phase in way.phases) / len(way.phases)
    return way.rate_bps


def _there(link: Link) -> float:
    """The share of time that a link is up, as far as means tell."""
    if link.up_down:
        return link.up_down.up_s / (link.up_down.up_s + link.up_down.down_s)
    return 1.0
