"""Tensors that are stored inside larger ones: in-place padding and in-place concat."""
