"""Times candidates for the kernels of a model, and records the ones that are faster than the heuristics."""
