"""ONNX's own node tests (onnx.backend.test), imported, compiled and run as the build does.

PYTHONPATH=build_tools:tests .venv/bin/python -m conformance.onnx_nodes [--only WORD] [--write]
"""
