"""Islands: nodes that are close together hold one model, a stage each."""

from atoll.island.cut import Cut, Layer, Machine, Stage, Terms, cut, profile

__all__ = ["Cut", "Layer", "Machine", "Stage", "Terms", "cut", "profile"]
