"""Kernels: computation, packing of weights and schedule of each family of operators; one family a file."""
