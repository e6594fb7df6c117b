"""Tensors that are parts of others: in-place padding and in-place concat."""
