"""ResNet8 before its softmax through all of Kiln, on its targets, next to LiteRT on 40 inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conformance.cut import before_softmax
from conformance.pictures import LEAST_EQUAL, MOST_LEVELS, pictures
from kiln.golden.reference import open_reference

from .building import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cut(project: Project) -> Path:
    """The model file without its softmax."""
    project.make("target=x86_64", "model=resnet")
    return before_softmax(
        project.build / ".stages/models/resnet/source.tflite", project.folder / "resnet_logits.tflite"
    )


# Kernels of the heavy ones are compared bit by bit in conformance/test_kernels_int8.py and its neighbours.
@pytest.mark.parametrize(
    "target",
    [*(pytest.param(name, marks=pytest.mark.heavy) for name in ("x86_64", "aarch64", "x86_64_v2")), "armv7"],
)
def test_logits_agree_with_litert(project: Project, cut: Path, target: str) -> None:
    project.make(f"target={target}", f"model={cut.name}", "-j2")
    runs = [[picture] for picture in pictures()]
    assert len(runs) == 40
    ours = np.concatenate([outputs[0] for outputs in project.outputs(target, "resnet_logits", runs)])
    references = {kind: open_reference(cut, kind) for kind in ("builtin", "builtin_ref")}
    theirs = {
        kind: np.concatenate([reference.run(vector)[0] for vector in runs]).astype(int)
        for kind, reference in references.items()
    }
    assert len(np.unique(theirs["builtin"])) > 50, "the inputs do not exercise the model"
    levels = {kind: np.abs(ours.astype(int) - logits) for kind, logits in theirs.items()}
    for kind, difference in levels.items():
        print(
            f"{target}, {kind}: at most {difference.max()}; counts {np.bincount(difference.ravel()).tolist()}"
        )
    assert levels["builtin"].max() <= MOST_LEVELS
    assert (levels["builtin"] == 0).mean() >= LEAST_EQUAL
    between = np.abs(theirs["builtin_ref"] - theirs["builtin"]).max()
    assert levels["builtin_ref"].max() <= between + 1
