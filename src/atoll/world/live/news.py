"""News: nodes regularly exchange which nodes they reach, where nodes listen, and how fast their links are."""

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from atoll.world.live.fields import Fields, parse_addresses
from atoll.world.live.keys import Address

__all__ = ["News"]

LARGEST_RATE = 1e15


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """The content of a NEWS frame."""

    reaches: dict[str, float]
    """The nodes that it reaches directly, and the round-trip time to each."""
    addresses: dict[str, list[Address]]
    """The addresses of nodes that it knows."""
    said: dict[str, list[Address]] = field(default_factory=dict)
    """The addresses that its direct peers announced themselves; these are newer than those of other sources."""
    step_s: float = 0.0
    """How long its training step takes."""
    links: dict[str, dict[str, float]] = field(default_factory=dict)
    """The measurements of its links."""

    def pack(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def parse(cls, found: dict[str, Any], names: Collection[str]) -> "News":
        """Reads a NEWS frame.  Entries about nodes that are not in `names` are ignored."""
        fields = Fields(found, "NEWS frame")
        links = {}
        for name, link in fields.table("links").items():
            if name in names:
                measured = Fields(link if isinstance(link, dict) else {}, "NEWS frame, links")
                links[name] = {
                    "round_trip_s": measured.number("round_trip_s"),
                    "rate": measured.number("rate", most=LARGEST_RATE),
                }
        return cls(
            reaches={name: seconds for name, seconds in fields.numbers("reaches").items() if name in names},
            addresses=_addresses(fields.table("addresses"), names),
            said=_addresses(fields.table("said"), names) if "said" in found else {},
            step_s=fields.number("step_s"),
            links=links,
        )


def _addresses(found: dict[str, Any], names: Collection[str]) -> dict[str, list[Address]]:
    return {name: parse_addresses(where, "malformed NEWS frame") for name, where in found.items() if name in names}
