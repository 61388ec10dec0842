"""Random faults, and checks of invariants: of replicas (`run`) and of islands (`islands`)."""

from atoll.fuzz.cases import STRATEGIES, Case, Failure, draw_case
from atoll.fuzz.replicas import PlainReplica
from atoll.fuzz.run import check, fuzz, minimise

__all__ = ["STRATEGIES", "Case", "Failure", "PlainReplica", "check", "draw_case", "fuzz", "minimise"]
