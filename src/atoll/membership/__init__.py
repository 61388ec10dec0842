"""Membership: views that nodes which reach each other agree on, without a coordinator."""

from atoll.membership.group import GRACE_S, Group
from atoll.membership.view import Guest, Summary, View

__all__ = ["GRACE_S", "Group", "Guest", "Summary", "View"]
