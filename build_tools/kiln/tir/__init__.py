"""Tools that write TIR: a loop builder, dynamic shapes, vector expressions, and the C ABI of kernels."""
