"""The `lower` stage: from the simplified graph to kernels and steps, for one target."""
