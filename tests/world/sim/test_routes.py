import itertools

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.network import Link, Network, Node, Way
from atoll.world.sim.routes import Routes


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Network, set[str]]:
    count = draw(st.integers(2, 7))
    names = [chr(ord("a") + n) for n in range(count)]
    pairs = draw(st.lists(st.sampled_from(list(itertools.combinations(names, 2))), unique=True, max_size=12))
    links = tuple(Link(a=a, b=b, there=(way := Way(latency_s=draw(st.integers(1, 9)) / 8)), back=way) for a, b in pairs)
    hubs = draw(st.integers(0, count - 2))
    nodes = tuple(Node(name=name) for name in names[: count - hubs])
    down = draw(st.sets(st.sampled_from([link.name for link in links]))) if links else set()
    return Network(name="random", nodes=nodes, hubs=tuple(names[count - hubs :]), links=links), down


@given(graphs())
@settings(max_examples=300, deadline=None)
def test_paths_are_the_shortest_that_work(case: tuple[Network, set[str]]) -> None:
    net, down = case
    routes = Routes(net, lambda link: link.name not in down, lambda link, _: link.there.latency_s)
    graph = nx.Graph()
    graph.add_nodes_from([*net.node_names, *net.hubs])
    graph.add_weighted_edges_from((link.a, link.b, link.there.latency_s) for link in net.links if link.name not in down)
    for a, b in itertools.permutations(net.node_names, 2):
        path = routes.find(a, b)
        own = next((link for link in net.links if {link.a, link.b} == {a, b}), None)
        if own:
            assert path == (None if own.name in down else ((own, own.a == a),))
        elif not nx.has_path(graph, a, b):
            assert path is None
        else:
            assert path is not None
            assert sum(link.there.latency_s for link, _ in path) == nx.shortest_path_length(graph, a, b, "weight")
            points = [a]
            for link, forward in path:
                start, end = (link.a, link.b) if forward else (link.b, link.a)
                assert start == points[-1]
                assert link.name not in down
                points.append(end)
            assert points[-1] == b
