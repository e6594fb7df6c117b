"""Operators with a definition of their own in TIR, on CPUs and GPUs."""
