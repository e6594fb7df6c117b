"""How depthwise convolutions multiply integers, by the target's instructions."""

from __future__ import annotations

import pytest
from kiln.config import load_target
from kiln.kernels.cpu.depthwise_tile import method_of
from kiln.lower.pipeline import machine_of


@pytest.mark.parametrize(
    ("target", "variant", "dtypes", "accumulator", "method"),
    [
        ("x86_64", "v3", ("int8", "int8"), "int32", "pairs"),
        ("x86_64", "v3_vnni", ("uint8", "int8"), "int32", "vnni"),
        ("x86_64", "v4", ("int16", "int8"), "int32", "pairs"),
        ("x86_64", "v4_amx", ("int8", "int8"), "int32", "vnni"),
        ("x86_64_v2", "v2", ("int8", "int8"), "int32", "pairs"),
        ("x86_64", "v3", ("int16", "int8"), "int64", ""),
        ("x86_64", "v3", ("int32", "int8"), "int32", ""),
        ("x86_64", "v3", ("float32", "float32"), "float32", ""),
        ("aarch64", "dotprod", ("int8", "int8"), "int32", "smull"),
        ("aarch64", "base", ("uint8", "int8"), "int32", ""),
        ("armv7", "base", ("int8", "int8"), "int32", "vmull"),
        ("armv7", "base", ("int8", "int16"), "int32", ""),
        ("wasm32", "wasm32", ("int8", "int8"), "int32", ""),
    ],
)
def test_method(target: str, variant: str, dtypes: tuple[str, str], accumulator: str, method: str) -> None:
    chosen = load_target(target)
    chosen = chosen if variant == target else chosen.for_variant(variant)
    assert method_of(machine_of(chosen, "none"), dtypes, accumulator, weights_narrow=True) == method


def test_products_of_two_taps_need_weights_above_the_least() -> None:
    machine = machine_of(load_target("aarch64"), "none")
    assert method_of(machine, ("int8", "int8"), "int32", weights_narrow=False) == ""
