"""Kernels for NVIDIA GPUs: schedules, tensor cores, 16-bit tensors."""
