"""Sessions of ONNX Runtime that compute a graph as it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from kiln.frontend.onnx.exact_sums import make_exact, may_saturate
from kiln.onnx_domains import domain_name

# The newest versions of the format and of ONNX's operators that ONNX Runtime 1.31 loads. The package onnx
# writes newer ones, in which operators have become more general.
_FORMAT, _OPERATORS = 13, 26


def plain_session(model: str | bytes, severity: int = 3, folder: Path | None = None) -> Any:
    """A session on one CPU thread, without graph optimisations, for a file or its content.

    `severity`: least severity of the messages that ONNX Runtime prints: 3 for errors, 4 for fatal errors.
    `folder`: of the external data of a model that is given as its content. A model of a format or of
    operators that are newer than ONNX Runtime is loaded as one of the newest that it knows. Sums of products
    of 8-bit integers are exact on every CPU, see kiln.frontend.onnx.exact_sums.
    """
    if may_saturate(model):
        proto = _parsed(model)
        if make_exact(proto):
            folder = Path(model).parent if isinstance(model, str) else folder
            model = proto.SerializeToString()
    try:
        return _session(model, severity, folder)
    except Exception:  # ONNX Runtime raises exception types of its own
        older = _as_older(model)
        if older is None:
            raise
        return _session(older, severity, Path(model).parent if isinstance(model, str) else folder)


def _session(model: str | bytes, severity: int, folder: Path | None) -> Any:
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


def is_newer(model: onnx.ModelProto) -> bool:
    """Whether the format or the operators of `model` are newer than ONNX Runtime, and known to onnx."""
    operators = max((opset.version for opset in _opsets(model)), default=0)
    newest = onnx.defs.onnx_opset_version()
    known = model.ir_version <= onnx.IR_VERSION and operators <= newest
    return known and (model.ir_version > _FORMAT or operators > _OPERATORS)


def _opsets(model: onnx.ModelProto) -> list[onnx.OperatorSetIdProto]:
    """The versions of ONNX's own operators in `model` and in its functions."""
    owners = [model, *model.functions]
    return [item for owner in owners for item in owner.opset_import if domain_name(item.domain) == ""]


def made_older(model: onnx.ModelProto) -> bool:
    """Give a model that is newer than ONNX Runtime the newest versions that it knows; whether it was newer.

    Operators keep their meaning: ONNX Runtime refuses attributes and types that it does not know.
    """
    if not is_newer(model):
        return False
    model.ir_version = min(model.ir_version, _FORMAT)
    for opset in _opsets(model):
        opset.version = min(opset.version, _OPERATORS)
    return True


def _as_older(model: str | bytes) -> bytes | None:
    """The content of `model` with versions that ONNX Runtime knows; None if its own are not too new."""
    proto = _parsed(model)
    return proto.SerializeToString() if made_older(proto) else None


def _parsed(model: str | bytes) -> onnx.ModelProto:
    """A model from its file, without external data, or from its content."""
    if isinstance(model, bytes):
        return onnx.ModelProto.FromString(model)
    return onnx.load(model, load_external_data=False)
