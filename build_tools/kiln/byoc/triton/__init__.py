"""Kernels written in Triton: templates, their compilation ahead of time, and the choice of tiles."""
