"""torchvision's networks for tasks: detectors with their own post-processing, segmentation, flow, video."""

from __future__ import annotations

from typing import Any

import torch
import torchvision
from torch import nn

from zoo.catalogue import Entry, Made, add
from zoo.prepare import randomise

_SIDE = 96
_IMAGE = {"image": {0: "batch"}}
_BATCH = {"batch": (1, 2)}


class Detector(nn.Module):
    """A detector of torchvision on one image of the size that its own resizing leaves unchanged."""

    def __init__(self, net: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.net, self.names = net, names

    def forward(self, image: Any) -> Any:
        detections = self.net([image])
        detections = detections[1][0] if isinstance(detections, tuple) else detections[0]
        return tuple(detections[name] for name in self.names)


# by name: arguments of the constructor beside those of all, and the fields of the result
_DETECTORS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "ssdlite320_mobilenet_v3_large": ({"topk_candidates": 20, "detections_per_img": 20}, ()),
    "ssd300_vgg16": ({"topk_candidates": 10, "detections_per_img": 10}, ()),
    "fasterrcnn_mobilenet_v3_large_320_fpn": ({"box_detections_per_img": 10}, ()),
    "fasterrcnn_resnet50_fpn_v2": ({"box_detections_per_img": 10}, ()),
    "retinanet_resnet50_fpn": ({"topk_candidates": 20, "detections_per_img": 20}, ()),
    "fcos_resnet50_fpn": ({"topk_candidates": 20, "detections_per_img": 20}, ()),
    "maskrcnn_resnet50_fpn": ({"box_detections_per_img": 5}, ("masks",)),
    "keypointrcnn_resnet50_fpn": ({"box_detections_per_img": 5, "num_keypoints": 4}, ("keypoints",)),
}


def _detector(name: str) -> Made:
    options, more = _DETECTORS[name]
    classes = 2 if name.startswith("keypoint") else 6
    if not name.startswith("ssd"):  # those have sizes of their own
        options = {**options, "min_size": _SIDE, "max_size": _SIDE}
    if "rcnn" in name:
        options = {
            **options,
            "box_score_thresh": 0.0,
            "rpn_pre_nms_top_n_test": 60,
            "rpn_post_nms_top_n_test": 20,
        }
    make = getattr(torchvision.models.detection, name)
    net = make(weights=None, weights_backbone=None, num_classes=classes, **options)
    side = 320 if "320_mobilenet" in name and "ssd" in name else 300 if name.startswith("ssd300") else _SIDE
    image = torch.rand(3, side, side)
    randomise(net)
    _scale(net.eval(), image)
    return Detector(net, ("boxes", "scores", "labels", *more)), {"image": image}


def _scale(net: Any, image: Any) -> None:
    """Give the results of layers a deviation of 1, and less to layers that score classes or move boxes.

    torchvision's own initialisation leaves all scores nearly equal; large ones would all round to 1, and
    large movements of boxes would all end at the image's edges.
    """
    scoring = {module for path, module in net.named_modules() if "cls" in path or "class" in path}
    moving = {module for path, module in net.named_modules() if "bbox" in path or "regression" in path}

    def after(module: Any, _: Any, result: Any) -> Any:
        deviation = result.std().clamp(min=1e-6) if result.numel() > 1 else 1
        deviation = deviation * (100 if module in scoring else 30 if module in moving else 1)
        module.weight.data /= deviation
        return result / deviation

    kinds = nn.Conv2d | nn.Linear
    hooks = [m.register_forward_hook(after) for m in net.modules() if isinstance(m, kinds)]
    with torch.no_grad():
        net([image])
    for hook in hooks:
        hook.remove()


for _name in _DETECTORS:
    add(Entry(f"{_name}", "detection", lambda n=_name: _detector(n)))  # type: ignore[misc]


class Out(nn.Module):
    """The main result of a segmentation network."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Any) -> Any:
        return self.net(image)["out"]


def _segmentation(name: str) -> Made:
    make = getattr(torchvision.models.segmentation, name)
    return Out(make(weights=None, weights_backbone=None, num_classes=6)), {"image": torch.randn(1, 3, 64, 64)}


for _name in ("fcn_resnet50", "deeplabv3_resnet50"):
    add(Entry(_name, "segmentation", lambda n=_name: _segmentation(n), _IMAGE, _BATCH))  # type: ignore[misc]


class Raft(nn.Module):
    """The last of RAFT's estimates."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.net, self.updates = torchvision.models.optical_flow.raft_small(weights=None), updates

    def forward(self, first: Any, second: Any) -> Any:
        return self.net(first, second, num_flow_updates=self.updates)[-1]


def raft_small() -> Made:
    """RAFT with two updates, on images of the least size."""
    return Raft(2), {
        "first": torch.rand(1, 3, 128, 128) * 2 - 1,
        "second": torch.rand(1, 3, 128, 128) * 2 - 1,
    }


add(
    Entry(
        "raft_small",
        "image",
        raft_small,
        {"first": {0: "batch"}, "second": {0: "batch"}},
        _BATCH,
    )
)

_VIDEO = {"r3d_18": (4, 32), "mc3_18": (4, 32), "r2plus1d_18": (4, 32)}


def _video(name: str) -> Made:
    frames, side = _VIDEO[name]
    network = getattr(torchvision.models.video, name)(weights=None)
    return network, {"image": torch.randn(1, 3, frames, side, side)}


for _name in _VIDEO:
    add(Entry(_name, "video", lambda n=_name: _video(n), _IMAGE, _BATCH))  # type: ignore[misc]


class Suppressed(nn.Module):
    """The end of a detector of YOLO's kind: boxes and scores, suppression per class, the best boxes."""

    def __init__(self, classes: int = 8, most: int = 25) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(32, 32, 3, 2, 1),
        )
        self.head, self.most = nn.Conv2d(32, 5 + classes, 1), most

    def forward(self, image: Any) -> Any:
        x = self.head(torch.relu(self.body(image)))
        _, _, h, w = x.shape
        gy, gx = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
        x = x[0].flatten(1).T
        middle = (torch.stack((gx, gy), -1).reshape(-1, 2) + x[:, :2].tanh()) * 8
        half = (x[:, 2:4].clamp(max=2).exp() * 8) / 2
        boxes = torch.cat((middle - half, middle + half), 1)
        score, label = (x[:, 4:5].sigmoid() * x[:, 5:].softmax(1)).max(1)
        likely = score > 0.05
        boxes, score, label = boxes[likely], score[likely], label[likely]
        indices = torchvision.ops.batched_nms(boxes, score, label, 0.5)
        return boxes[indices], score[indices], label[indices]


def yolo_nms() -> Made:
    """The detector with suppression in its graph."""
    return Suppressed(), {"image": torch.randn(1, 3, 64, 96)}


add(Entry("yolo_nms", "detection", yolo_nms, {"image": {2: "8*h", 3: "8*w"}}, {"h": (2, 12), "w": (2, 12)}))
