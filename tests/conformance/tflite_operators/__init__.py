"""Builtin operators of TFLite's schema against LiteRT, in every type that LiteRT's kernels take.

PYTHONPATH=build_tools:tests .venv/bin/python -m conformance.tflite_operators --write
"""
