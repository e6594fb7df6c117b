"""Tools for writing TIR: a loop builder, dynamic shapes, vector expressions, and the C ABI of kernels."""
