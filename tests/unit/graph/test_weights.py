"""The key `weights`: what is rounded, what stays, and that the result is stored in the type asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import compact_cases
from kiln.arrays import Array
from kiln.config import load_model
from kiln.config.weights import Weights
from kiln.errors import KilnError
from kiln.graph.weights import _Rounding
from kiln.params import store
from kiln.params.compress import BITS
from kiln.params.encodings import find
from relaxed import const, module
from tvm import relax

op = relax.op
RNG = np.random.default_rng(2)


def _rounded(wanted: dict[str, Any], weights: Array, make: Any, shape: tuple[int, ...]) -> Array:
    """The largest constant of a module with one use of `weights`, after the pass."""
    dtype = "int32" if make is _look_up else "float32"
    mod = module([(shape, dtype)], lambda x: make(x, const(weights)))
    _, values = store.split(_Rounding(Weights.model_validate(wanted)).module(mod))
    return max(values.values(), key=lambda value: value.size)


def _dense(x: Any, w: Any) -> Any:
    return op.matmul(x, w)


def _look_up(x: Any, w: Any) -> Any:
    return op.take(w, x, 0, "clip")


def _conv(x: Any, w: Any) -> Any:
    return op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")


def _depthwise(x: Any, w: Any) -> Any:
    return op.nn.conv2d(x, w, groups=256, data_layout="NHWC", kernel_layout="HWIO")


USES = {
    _dense: ((200, 40), (3, 200)),
    _look_up: ((40, 200), (3,)),
    _conv: ((3, 3, 48, 40), (1, 5, 5, 48)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("wanted", [{"type": kind} for kind in BITS] + [{"type": "int4", "block": 16}])
def test_weights_are_rounded_to_what_is_stored_in_the_type(use: Any, wanted: dict[str, Any]) -> None:
    weights = RNG.standard_normal(USES[use][0]).astype("f4")
    rounded = _rounded(wanted, weights, use, USES[use][1])
    encoding = find(rounded)
    assert encoding is not None and encoding.bits == BITS[wanted["type"]]
    worst = {"fp16": 1e-3, "bf16": 8e-3, "int8": 0.02, "int4": 0.4}[wanted["type"]]
    assert 0 < np.abs(rounded - weights).max() < worst * np.abs(weights).max()


def test_smaller_blocks_of_int4_are_nearer() -> None:
    weights = RNG.standard_normal((256, 40)).astype("f4")

    def error(block: int) -> float:
        rounded = _rounded({"type": "int4", "block": block}, weights, _dense, (3, 256))
        return float(((rounded - weights) ** 2).mean())

    assert error(16) < error(64) < error(256)


def test_weights_with_few_bits_small_ones_and_depthwise_ones_stay() -> None:
    few = compact_cases.levels((200, 40), 4, (32, 1))
    assert (_rounded({"type": "int8"}, few, _dense, (3, 200)) == few).all()
    small = RNG.standard_normal((20, 40)).astype("f4")
    assert (_rounded({"type": "int8"}, small, _dense, (3, 20)) == small).all()
    deep = RNG.standard_normal((3, 3, 1, 256)).astype("f4")
    assert (_rounded({"type": "int8"}, deep, _depthwise, (1, 5, 5, 256)) == deep).all()


def test_weights_beyond_float16_stay() -> None:
    weights = RNG.standard_normal((200, 40)).astype("f4")
    weights[3, 4] = 1e6
    assert (_rounded({"type": "fp16"}, weights, _dense, (3, 200)) == weights).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int3", "'int3', allowed: fp16, bf16, int8, int4"),
        ("{type: fp16, block: 32}", "fp16 has no scales"),
        ("{type: int4, block: 8}", "must be at least 16"),
        ("{type: int4, limit: 0}", "must be more than 0"),
        ("{type: int4, size: 3}", "size"),
    ],
)
def test_bad_keys_are_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(f"source: {{kind: file, path: m.onnx}}\nweights: {text}\n", encoding="utf-8")
    with pytest.raises(KilnError) as caught:
        load_model(path)
    assert "weights" in str(caught.value) and said in str(caught.value)


def test_the_limit_is_the_least_tolerance(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        "source: {kind: file, path: m.onnx}\nweights: {type: int8, limit: 0.125}\n", encoding="utf-8"
    )
    assert load_model(path).tolerance_in_force()["relative"] == 0.125
