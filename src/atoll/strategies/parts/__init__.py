"""The parts of strategies: when to exchange, with whom, how to merge, outer steps, steps ahead, corrections."""
