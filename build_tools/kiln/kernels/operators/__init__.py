"""Operators that Kiln defines in TIR itself, for CPUs and GPUs."""
