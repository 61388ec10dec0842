"""The link measurements of a run's nodes, as a network that can be simulated."""

import asyncio
import math
from typing import Any

from atoll.errors import InvitationError
from atoll.world.live.join import ask_for_report
from atoll.world.live.keys import Identity, Invitation

__all__ = ["network_of", "probe_run"]


def probe_run(invitation: str) -> dict[str, Any]:
    """Asks a run for its measurements."""
    parsed = Invitation.parse(invitation)
    return asyncio.run(ask_for_report(parsed, Identity(parsed.secret)))


def network_of(report: dict[str, Any]) -> str:
    """The network as TOML.  A rate is that of delivered bulk messages, so a link that was never busy has no rate."""
    try:
        nodes = {str(name): dict(known) for name, known in report["nodes"].items()}
        lines = ['about = "measured by `atoll probe`"', ""]
        for name, known in nodes.items():
            lines += ["[[node]]", f'names = ["{name}"]', _step(float(known["step_s"])), ""]
        seen: set[frozenset[str]] = set()
        for name, known in nodes.items():
            for other, link in known["links"].items():
                pair = frozenset((name, other))
                if other not in nodes or pair in seen:
                    continue
                seen.add(pair)
                back = nodes[other]["links"].get(name, link)
                lines += _link(name, str(other), link, back)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvitationError(f"the run's report is not understood ({error})") from None
    return "\n".join(lines)


def _step(seconds: float) -> str:
    return f"step_s = {max(seconds, 1e-6):.4g}" if seconds > 0 else "step_s = 0.5  # a guess: it has taken no step yet"


def _link(one: str, other: str, there: dict[str, float], back: dict[str, float]) -> list[str]:
    round_trip_s = min(float(there["round_trip_s"]) or math.inf, float(back["round_trip_s"]) or math.inf)
    latency_ms = 500 * round_trip_s if round_trip_s < math.inf else 0.0
    lines = ["[[link]]", f'between = ["{one}", "{other}"]', f"latency_ms = {latency_ms:.4g}"]
    rates = [float(way["rate"]) * 8 / 1e6 for way in (there, back) if float(way["rate"]) > 0]
    if rates:
        lines.append(f"rate_mbps = {max(rates):.4g}")
    return [*lines, ""]
