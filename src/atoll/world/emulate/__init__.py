"""A network on one machine: a namespace for each node, real TCP, and a switch between them that delays and drops
packets as the network says.
"""
