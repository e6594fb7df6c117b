"""Sessions of ONNX Runtime that compute a graph as it is written."""

from __future__ import annotations

from typing import Any


def plain_session(model: str | bytes, severity: int = 3) -> Any:
    """A session on one CPU thread, without graph optimisations, for a file or its content.

    `severity`: least severity of the messages that ONNX Runtime prints: 3 for errors, 4 for fatal errors.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = severity
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
