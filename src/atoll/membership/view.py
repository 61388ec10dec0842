"""Views, and who exchanges in them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["LONGEST_NAME", "Guest", "Summary", "View", "read_summary"]

LONGEST_NAME = 200
LONGEST_SUMMARY = 2_000

Summary = list[list[Any]]
"""Where a node stands: what it has agreed on with others, in words that JSON has: pairs of a text and a text or number.
"""


@dataclass(frozen=True, slots=True)
class View:
    """What its members agree on: who they are, and which agreement it is.

    Exchanges take place inside one view and carry its name, so nodes that have different ideas of who is here never mix
    theirs up.
    """

    number: int
    leader: str
    """Who proposed it; after that it is a member like all others."""
    members: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.number}.{self.leader}"


class Guest(Protocol):
    """Who exchanges in views."""

    def results(self) -> Summary:
        """The last exchanges of this view, each with a digest of what came of it here."""

    def compared(self, sender: str, results: Summary) -> bool:
        """Another member's results; `False` if the same exchange came to something else here."""

    def summary(self) -> Summary:
        """Where this node stands."""

    def stands(self, summary: Summary) -> bool:
        """Whether this is still where this node stands.  It is, while the group is held."""

    def check(self, summary: Summary) -> None:
        """Raises a `ValueError` if another node's summary makes no sense."""

    def are_together(self, summaries: Iterable[Summary]) -> bool:
        """Whether nodes that stand there have something in common."""

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        """A view holds from now on.

        Args:
            view: with this node in it.
            summaries: where every member stood when it accepted; the same for all.
        """


def read_summary(summary: Any) -> Summary:
    """A summary that another node gave: pairs of a text, and a text or number."""
    if not isinstance(summary, list) or len(summary) > LONGEST_SUMMARY:
        raise ValueError("a summary is a short list of pairs")
    for each in summary:
        first, second = each
        if not isinstance(first, str) or not isinstance(second, int | str):
            raise ValueError(f"{each!r:.100} is not part of a summary")  # noqa: TRY004 - all that is wrong is one error
    return summary
