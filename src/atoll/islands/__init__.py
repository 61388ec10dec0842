"""Islands: nodes that are close together hold one model, a stage each."""

from atoll.islands.chain import chain, profile
from atoll.islands.cut import Costs, Cut, Hop, Layer, Machine, Memory, Stage, Terms, best_cut, cut
from atoll.islands.form import form, reform
from atoll.islands.measure import Prober
from atoll.islands.pipeline import Given, Pipeline, Source, StageSeat
from atoll.islands.plan import Averaging, Island, MachineLinks, Plan, equal_cuts, ranges, shortage
from atoll.islands.stage import WEIGHTS, StageModel, Weights
from atoll.islands.survey import survey
from atoll.islands.wire import read_tensors

__all__ = [
    "WEIGHTS",
    "Averaging",
    "Costs",
    "Cut",
    "Given",
    "Hop",
    "Island",
    "Layer",
    "Machine",
    "MachineLinks",
    "Memory",
    "Pipeline",
    "Plan",
    "Prober",
    "Source",
    "Stage",
    "StageModel",
    "StageSeat",
    "Terms",
    "Weights",
    "best_cut",
    "chain",
    "cut",
    "equal_cuts",
    "form",
    "profile",
    "ranges",
    "read_tensors",
    "reform",
    "shortage",
    "survey",
]
