"""Sessions of ONNX Runtime that compute a graph as it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plain_session(model: str | bytes, severity: int = 3, folder: Path | None = None) -> Any:
    """A session on one CPU thread, without graph optimisations, for a file or its content.

    `severity`: least severity of the messages that ONNX Runtime prints: 3 for errors, 4 for fatal errors.
    `folder`: of the external data of a model that is given as its content.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = severity
    if folder is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder.resolve())
        )
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
