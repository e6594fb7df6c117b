"""Times candidates for the kernels of a model, and records what is faster than the heuristics.

The heuristics' decisions are called the rules (`RULES`) in this package.
"""
