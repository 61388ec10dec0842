"""The simulated world: virtual time, modelled links, faults, and nodes that cannot tell."""
