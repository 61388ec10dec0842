"""Views, and the interface of their members."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["LONGEST_NAME", "Guest", "Summary", "View", "read_summary"]

LONGEST_NAME = 200
LONGEST_SUMMARY = 2_000

Summary = list[list[Any]]
"""A node's state as agreed with others, as JSON values: pairs of a text, and a text or number."""


@dataclass(frozen=True, slots=True)
class View:
    """An agreement of its members: who they are, and which agreement it is.

    Exchanges take place inside one view and carry its name, so nodes with different views never mix up their exchanges.
    """

    number: int
    leader: str
    """The node that proposed it; after that it is a member like all others."""
    members: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.number}.{self.leader}"


class Guest(Protocol):
    """Takes part in the exchanges of views."""

    def results(self) -> Summary:
        """The last exchanges of this view, each with a digest of its result here."""

    def compared(self, sender: str, results: Summary) -> bool:
        """Compares another member's results; `False` if an exchange had a different result here."""

    def summary(self) -> Summary:
        """A summary of this node's state."""

    def stands(self, summary: Summary) -> bool:
        """Whether the summary is still that of this node.  It is, while the group is held."""

    def check(self, summary: Summary) -> None:
        """Raises a `ValueError` if another node's summary is malformed."""

    def are_together(self, summaries: Iterable[Summary]) -> bool:
        """Whether nodes with these summaries have something in common."""

    def installed(self, view: View, summaries: dict[str, Summary]) -> None:
        """Called when a view is installed.

        Args:
            view: the view, which includes this node.
            summaries: the summaries of all members when they accepted; the same for all.
        """


def read_summary(summary: Any) -> Summary:
    """Checks a summary of another node: pairs of a text, and a text or number."""
    if not isinstance(summary, list) or len(summary) > LONGEST_SUMMARY:
        raise ValueError("a summary is a short list of pairs")
    for each in summary:
        first, second = each
        if not isinstance(first, str) or not isinstance(second, int | str):
            raise ValueError(f"{each!r:.100} is not part of a summary")  # noqa: TRY004 - one error type for all
    return summary
