"""ResNet8 before its softmax, which maps most faults to the same saturated class scores, on 40 inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from kiln.golden.reference import open_reference

from .cut import before_softmax
from .models import compile_on_host, imported, source

INPUTS = 40
# Measured against BUILTIN: 12 of 400 logits one level off, 2 three levels (an addition doubles a one-level
# difference of its input), the others equal; BUILTIN_REF is up to 5 levels from both, BUILTIN and this
# import.
MOST_LEVELS = 3
LEAST_EQUAL = 0.9


def _pictures() -> list[npt.NDArray[np.int8]]:
    """Half white noise, half blocks of even colour: noise alone leaves most late channels dead."""
    generator = np.random.default_rng(8)
    noise = [generator.integers(-128, 128, (1, 32, 32, 3)) for _ in range(INPUTS // 2)]
    blocks = [
        generator.integers(-128, 128, (1, 32 // size, 32 // size, 3)).repeat(size, 1).repeat(size, 2)
        for size in (2, 4, 8, 16)
        for _ in range(INPUTS // 8)
    ]
    return [picture.astype(np.int8) for picture in noise + blocks]


def test_logits_agree_with_litert(tmp_path: Path) -> None:
    cut = before_softmax(source("resnet"), tmp_path / "resnet_logits.tflite")
    module, interface = imported("resnet", cut)
    assert interface["outputs"][0]["shape"] == [1, 10]
    assert interface["outputs"][0]["quant"]["scale"] > 0.1  # logits, not scores with a scale of 1/256
    run = compile_on_host(module)
    references = {kind: open_reference(cut, kind) for kind in ("builtin_ref", "builtin")}
    pictures = _pictures()
    assert len(pictures) == INPUTS
    ours = np.concatenate([run([picture])[0] for picture in pictures]).astype(int)
    theirs = {
        kind: np.concatenate([reference.run([picture])[0] for picture in pictures]).astype(int)
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
