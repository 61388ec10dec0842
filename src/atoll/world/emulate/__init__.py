"""A network on one machine: a namespace for each node, real TCP, and a switch between them that does to packets what
the network says.
"""
