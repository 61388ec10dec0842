import collections

import numpy as np
import pytest

from atoll.strategies import parse_strategy
from tests.strategies.nodes import run_strategy
from tests.world.networks import network

NET = network('[[node]]\ncount = 4\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20')


def test_a_share_of_the_nodes_lend_a_share_of_their_batch_to_all_others() -> None:
    spec = parse_strategy("selsync:lenders=0.25,lend=0.5")
    replicas = run_strategy(NET, spec, lambda _: (np.zeros(2), np.ones(2)), steps=400)
    for name, replica in replicas.items():
        assert replica.batch_factor == pytest.approx(1 / (1 + 0.25 * 0.5 * 4))
        lent = collections.Counter(replica.borrowed)
        assert set(lent) == {f"{other} 0.5" for other in replicas if other != name}
        assert all(60 < count < 140 for count in lent.values())  # 100 expected


def test_who_cannot_be_reached_gets_none() -> None:
    cut = network('[[node]]\ncount = 2\nstep_s = 0.5\n[[link]]\namong = "*"\nlatency_ms = 20\noutages = [[0.1, inf]]')
    spec = parse_strategy("selsync:lenders=1")
    replicas = run_strategy(cut, spec, lambda _: (np.zeros(2), np.ones(2)), steps=40)
    assert all(not replica.borrowed[3:] for replica in replicas.values())
