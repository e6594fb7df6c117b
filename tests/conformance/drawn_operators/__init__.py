"""Operators of ONNX and of ONNX Runtime on drawn ranks, sizes, attributes and operator sets.

PYTHONPATH=build_tools:tests .venv/bin/python -m conformance.drawn_operators [--only NAMES] [--seeds A:B]
"""
