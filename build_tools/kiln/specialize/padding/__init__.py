"""Padding of inputs to a bucket's size: the wrapper around a graph, and the proof that padding is neutral."""
