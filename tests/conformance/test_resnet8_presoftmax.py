"""ResNet8 before its softmax, which maps most faults to the same saturated class scores, on 40 inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kiln.golden.reference import open_reference

from .cut import before_softmax
from .models import compile_on_host, imported, source
from .pictures import LEAST_EQUAL, MOST_LEVELS, pictures


@pytest.mark.heavy  # golden vectors of the model are in the gate
def test_logits_agree_with_litert(tmp_path: Path) -> None:
    cut = before_softmax(source("resnet"), tmp_path / "resnet_logits.tflite")
    module, interface = imported("resnet", cut)
    assert interface.outputs[0].shape == [1, 10]
    assert interface.outputs[0].quant.scale > 0.1  # logits, not scores with a scale of 1/256
    run = compile_on_host(module)
    references = {kind: open_reference(cut, kind) for kind in ("builtin_ref", "builtin")}
    images = pictures()
    ours = np.concatenate([run([picture])[0] for picture in images]).astype(int)
    theirs = {
        kind: np.concatenate([reference.run([picture])[0] for picture in images]).astype(int)
        for kind, reference in references.items()
    }
    assert len(np.unique(theirs["builtin"])) > 50, "the inputs do not exercise the model"
    levels = {kind: np.abs(ours - logits) for kind, logits in theirs.items()}
    levels["between LiteRT's two"] = np.abs(theirs["builtin_ref"] - theirs["builtin"])
    for kind, difference in levels.items():
        print(f"{kind}: at most {difference.max()} levels; counts {np.bincount(difference.ravel()).tolist()}")
    assert levels["builtin"].max() <= MOST_LEVELS
    assert (levels["builtin"] == 0).mean() >= LEAST_EQUAL
    assert levels["builtin_ref"].max() <= levels["between LiteRT's two"].max() + 1
