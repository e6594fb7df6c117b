"""MaxPool's positions, and what a MaxUnpool makes of them, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .test_onnx_ops import check, write

SIZES = {"row": "2,3,11", "image": "2,3,7,9", "volume": "2,2,5,4,6"}
# The operand, and the attributes of a MaxPool of it.
POOLS = (
    ("row", "kernel_shape=[3]"),
    ("row", "kernel_shape=[4], strides=[3], pads=[1,2], dilations=[2], ceil_mode=1"),
    ("image", "kernel_shape=[2,3], strides=[2,1], pads=[1,0,0,2]"),
    ("image", "kernel_shape=[3,2], dilations=[2,3], storage_order=1"),
    ("image", 'kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER"'),
    ("image", 'kernel_shape=[2,4], strides=[3,3], auto_pad="SAME_LOWER", storage_order=1'),
    ("image", 'kernel_shape=[3,3], strides=[3,2], auto_pad="VALID"'),
    ("image", "kernel_shape=[3,3], strides=[2,2], ceil_mode=1"),
    ("volume", "kernel_shape=[2,2,3], strides=[2,1,3], pads=[1,0,1,0,1,0], storage_order=1"),
    ("volume", "kernel_shape=[3,2,2]"),
    ("integers", "kernel_shape=[2,2], strides=[2,2]"),
)


def test_positions_of_every_attribute_and_rank(tmp_path: Path) -> None:
    ranks = {"row": 3, "volume": 5}
    nodes, results = [], []
    for number, (name, given) in enumerate(POOLS):
        shape = ",".join(f"s{number}_{axis}" for axis in range(ranks.get(name, 4)))
        kind = "uint8" if name == "integers" else "float"
        results += [f"{kind}[{shape}] y{number}", f"int64[{shape}] p{number}"]
        nodes.append(f"y{number}, p{number} = MaxPool<{given}>({name})")
    nodes.append("back = MaxUnpool<kernel_shape=[3]>(y0, p0)")
    operands = ", ".join(f"float[{size}] {name}" for name, size in SIZES.items())
    text = f"g ({operands}, uint8[1,2,6,8] integers) => ({', '.join(results)}, float[a,b,c] back)"
    write(tmp_path / "m.onnx", f"{text} {{ {' '.join(nodes)} }}")
    random = np.random.default_rng(0)
    # Few distinct values, below 0: of equal elements the first counts, and never an element of the padding.
    operands_of = [
        -random.integers(1, 6, [int(n) for n in size.split(",")]).astype("float32") for size in SIZES.values()
    ]
    check(tmp_path / "m.onnx", *operands_of, random.integers(0, 5, (1, 2, 6, 8)).astype("uint8"))
