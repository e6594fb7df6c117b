"""torchvision's compiled operators in Python, for wheels whose own cannot be loaded.

PyPI's wheels of torchvision for Linux are compiled against a PyTorch for CUDA. With another PyTorch
torchvision can be imported only if its operators are declared, and traced only if they compute. Exporters
translate the operators by their names, so exported files do not contain what is defined here.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
}
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")


def torchvision() -> Any:
    """The module torchvision, with operators that can be exported."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name, schema in _SCHEMAS.items():
            _LIBRARY.define(name + schema)
        import torchvision

        _LIBRARY.impl("nms", _nms, "CPU")
        _LIBRARY.impl("roi_align", sys.modules["torchvision.ops.roi_align"]._roi_align, "CPU")
        torch.library.register_fake("torchvision::roi_align", _roi_align_shape)
        for name, module in list(sys.modules.items()):  # each asks its own name whether there are operators
            if name.startswith("torchvision.") and hasattr(module, "_assert_has_ops"):
                module.__dict__["_assert_has_ops"] = _nothing
            if name.startswith("torchvision.") and hasattr(module, "_has_ops"):
                module.__dict__["_has_ops"] = lambda: True
    return torchvision


def _nothing() -> None:
    """In place of torchvision's check; TorchScript compiles it by its source."""
    return


def _nms(boxes: Any, scores: Any, threshold: float) -> Any:
    """The indices of the boxes that no better box overlaps by more than `threshold`, by falling scores."""
    overlap = sys.modules["torchvision"].ops.box_iou(boxes, boxes)
    kept: list[int] = []
    for index in scores.argsort(descending=True, stable=True).tolist():
        if all(overlap[index, other] <= threshold for other in kept):
            kept.append(index)
    return torch.tensor(kept, dtype=torch.int64)


def _roi_align_shape(
    image: Any, rois: Any, _scale: float, height: int, width: int, _samples: int, _aligned: bool
) -> Any:
    return image.new_empty((rois.shape[0], image.shape[1], height, width))
