"""What strategies are made of: when, with whom, how to merge, outer steps, what lies ahead, corrections."""
