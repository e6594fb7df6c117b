"""Padding of inputs: the wrapper around a graph, and the proof that the padded part stays without effect."""
