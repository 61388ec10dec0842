"""Who is here: views that nodes which reach each other agree on, without a coordinator."""

from atoll.group.group import Group, Guest, Summary, View

__all__ = ["Group", "Guest", "Summary", "View"]
