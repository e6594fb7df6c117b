"""Variants that cannot work end the build in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kiln.config import Target, load_target
from kiln.errors import KilnError
from kiln.lower import target_check
from kiln.paths import data_dir


def _changed(name: str, shipped: str = "x86_64", **keys: Any) -> Target:
    """A shipped target with other values of keys of its variant `name`."""
    target = load_target(shipped)
    variants = [v.model_copy(update=keys) if v.name == name else v for v in target.variants]
    return target.model_copy(update={"variants": variants})


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (_changed("v4", cpu="x86-64-v2"), "variant 'v4' lacks fma, movbe, avx, f16c, bmi, avx2"),
        (_changed("v4", features=["-fma"]), "variant 'v4' lacks fma"),
        (_changed("v4", features=["+avx512vnni"]), "variants 'v4' and 'v4_vnni' have the same features"),
        (_changed("v4", cpu="x86-64-v3"), "variants 'v3' and 'v4' have the same features"),
        (_changed("v4", cpu="x86-64-v9"), "target 'x86_64', variant 'v4': LLVM knows no CPU 'x86-64-v9'"),
        (_changed("v4", features=["+avx1024"]), "variant 'v4': LLVM knows no feature 'avx1024'"),
        (
            _changed("rvv128", "riscv64", features=["+v"]),
            "lacks m, a, c, which every processor of arch riscv64",
        ),
        (_changed("sve256", "aarch64_sve", features=["+neon"]), "'sve' needs LLVM's feature sve, which CPU"),
    ],
)
def test_refused_by_features(target: Target, told: str) -> None:
    with pytest.raises(KilnError) as caught:
        target_check.check(target)
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "lacks"),
    [("x86_64_v2", "fma"), ("cortex_m3", "vfp4d16sp"), ("riscv32_imac", "f"), ("wasm32", "relaxed-simd")],
)
def test_fused_multiply_add_that_the_processor_lacks(name: str, lacks: str) -> None:
    target = load_target(name)
    fused = target.model_copy(update={"vector": target.vector.model_copy(update={"fma": True})})
    with pytest.raises(KilnError, match=rf"feature {lacks} \(key 'vector.fma'\): false expected"):
        target_check.check(fused)


@pytest.mark.parametrize("name", ["x86_64", "x86_64_v2", "aarch64", "aarch64_sve", "armv7"])
def test_shipped_variants_are_accepted(name: str) -> None:
    target = load_target(name)
    target_check.check(target)
    listed = target_check.features_by_variant(target)
    assert [entry.name for entry in listed] == target.variant_names
    assert len(listed) > 1


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("name: v4\n", "name: v3\n", "'v3' is the name of two variants"),
        ("name: v4\n", "name: V4\n", "lower-case letters, digits and '_' expected"),
        (
            "cpu: x86-64-v4\n    features: []",
            "cpu: x86-64-v3\n    features: []",
            r":2\d: .*key 'variants.1.features': variants 'v3' and 'v4' have the same cpu and features",
        ),
        (
            "features: [+avx512vnni, +amx-int8]",
            "features: [+avx512vnni]",
            "variants 'v4_vnni' and 'v4_amx' have the same cpu and features: leave one out",
        ),
        ("cuda: null", "cuda: {archs: [sm_90], ptx: false}", "no variants of the CPU expected"),
    ],
)
def test_refused_by_the_yaml(old: str, new: str, told: str, tmp_path: Path) -> None:
    text = (data_dir("targets") / "x86_64.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(KilnError, match=told):
        load_target(path)


def test_tile_registers_want_vectors_of_512_bits(tmp_path: Path) -> None:
    text = (data_dir("targets") / "x86_64.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("registers: 16, fma: true, dot: vnni", "registers: 16, fma: true, dot: amx"))
    with pytest.raises(KilnError, match=r"key 'variants.0.vector.dot': 'amx' with 256 bits: isa avx512"):
        load_target(str(path))


def test_scalable_vectors_are_those_of_64_bit_arm(tmp_path: Path) -> None:
    text = (data_dir("targets") / "x86_64.yaml").read_text(encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("isa: avx512, bits: 512, registers: 32, fma: true, dot: vnni",
                                 "isa: sve, bits: 512, registers: 32, fma: true, dot: sdot"))  # fmt: skip
    with pytest.raises(KilnError, match=r"key 'variants.2.vector.isa': 'sve' for arch x86_64"):
        load_target(path)


def test_variants_that_are_left_out() -> None:
    target = load_target("x86_64")
    one = target.with_variants(["v4"])
    assert (one.cpu, one.base, one.variants) == ("x86-64-v4", "v4", [])
    two = target.with_variants(["v4_vnni", "v3"])
    assert two.variant_names == ["v3", "v4_vnni"] and two.cpu == target.cpu
    with pytest.raises(ValueError, match="'v5' is not a variant of target 'x86_64': v3, v3_vnni, v4, "):
        target.with_variants(["v3", "v5"])
    with pytest.raises(ValueError, match="at least one of v3, v3_vnni, v4, v4_vnni, v4_amx expected"):
        target.with_variants([])
