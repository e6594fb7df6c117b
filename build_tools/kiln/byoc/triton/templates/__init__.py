"""Kernels as Triton's functions. Only the compiler's own process imports these files (see compiler.py)."""
