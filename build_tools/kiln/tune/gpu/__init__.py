"""Measurement of GPU kernels: candidates are built where there is no GPU, and timed by a small C program."""
