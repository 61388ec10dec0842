from pathlib import Path

from atoll.trace import ReachChanged, read_trace
from atoll.world.emulate.proxy import free_ports
from tests.world.emulate.test_supervisor import run, three


def test_free_ports() -> None:
    assert len(set(free_ports(20))) == 20


def test_bytes_keep_their_order_where_they_all_arrive_at_once(tmp_path: Path) -> None:
    """Links without a rate: else what is spoilt would break connections."""
    found, stats = run(tmp_path, three("latency_ms = 10"), "send_much", by="proxy", sizes=[10, 5_000_000])
    assert found["0"]["10"] > 0.02
    assert stats.delivered > 5_000_000 / (16 << 10)
    events = read_trace(tmp_path / "node.0.0.jsonl")
    lost = [event for event in events if isinstance(event, ReachChanged) and not event.reachable]
    assert not [event for event in lost if 0 < event.at < found["0"]["5000000"]]
