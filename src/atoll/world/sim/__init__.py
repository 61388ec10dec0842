"""The simulated world: virtual time, modelled links and faults; nodes cannot tell it from a real one."""
