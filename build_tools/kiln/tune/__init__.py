"""Times candidates for the kernels of a model, and records those that are faster than the heuristics."""
