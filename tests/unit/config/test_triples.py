"""The keys that name a target's machine agree: triple, architecture, vector unit, C compiler, C library."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.errors import KilnError
from kiln.paths import data_dir

TRIPLES = [
    *(
        ("aarch64", name)
        for name in ("aarch64-nope", "aarch64-", "aarch64-linux-gnu", "aarch64-unknown-linux")
    ),
    ("aarch64", "aarch64-unknown-linux-nope"),
    ("aarch64", "aarch64-unknown-linux-gnu-more"),
    ("aarch64", "aarch64-unknown-linux-gnueabihf"),
    ("aarch64", "aarch64-unknown-freebsd"),
    ("armv7", "armv7a-unknown-linux-gnu"),
    ("cortex_m4", "thumbv7em-nope"),
    ("cortex_m4", "thumbv7em-none-other"),
    ("cortex_m4", "thumbv7em-linux-eabihf"),
    ("riscv32_imac", "riscv32-nope-nope"),
    ("riscv64", "riscv64-nope"),
    ("wasm32", "wasm32-unknown-emscripten"),
    ("windows_x86_64", "x86_64-pc-windows-msvc"),
    ("x86_64", "x86_64-unknown-linux-gnux32"),
]
OTHERS = [
    (
        "aarch64",
        "isa: neon, bits: 128",
        "isa: neon, bits: 256",
        "256 with isa neon: at most 128",
    ),
    ("aarch64", "isa: neon, bits: 128", "isa: sse4, bits: 128", "vector.isa': 'sse4' for arch aarch64"),
    ("cortex_m0plus", "isa: none, bits: 32", "isa: none, bits: 512", "512 with isa none: at most 64"),
    ("wasm32", "isa: simd128", "isa: avx2", "vector.isa': 'avx2' for arch wasm32: of x86_64 alone"),
    ("x86_64", "registers: 16", "registers: 1000", "'vector.registers': must be at most 64, got 1000"),
    ("aarch64", "cores: 4", "cores: 1000000000", "key 'cores': must be at most 1024"),
    ("aarch64", "aarch64-linux-gnu.2.17", "x86_64-linux-gnu.2.17", "is not zig's name of a machine of arch"),
    ("aarch64", "aarch64-linux-gnu.2.17", "null", "'c_compiler.target': null: zig would compile for the"),
    ("aarch64", "aarch64-linux-gnu.2.17", "aarch64-windows-gnu", "name different systems"),
    ("aarch64", "aarch64-linux-gnu.2.17", "aarch64-linux-musl", "is not for glibc, the target's C library"),
    ("aarch64", "aarch64-linux-gnu.2.17", "aarch64-linux-gnu", "differ: 'aarch64-linux-gnu.2.17' expected"),
    ("aarch64", 'version: "2.17"', 'version: "2.40"', "(2.40) differ: 'aarch64-linux-gnu.2.40' expected"),
    ("aarch64", 'version: "2.17"', "version: two", r"'libc.version': 'two' does not match ^\d+"),
    ("aarch64", "kind: zig", "kind: gcc", "gcc has no flag -target: null expected"),
    ("armv7", "arm-linux-gnueabihf.2.17", "arm-linux-gnueabi.2.17", "pass floats in different ways"),
    ("cortex_m4", "thumb-freestanding-eabihf", "thumb-linux-eabihf", "name different systems"),
    ("ios_arm64", "aarch64-ios.15.0", "aarch64-ios.15.0-simulator", "name different systems"),
    ("android_arm64", "aarch64-linux-android.24", "aarch64-linux-android.29", "android.24' expected"),
    (
        "cuda_sm90",
        "archs: [sm_90]",
        "archs: [sm_91]",
        "sm_90, sm_100, sm_103, sm_107, sm_110, sm_120, sm_121 expected",
    ),
    ("android_arm64", "linux-android24", "linux-android29", "android29' and key 'libc.version' (24) differ:"),
]


def complaint(target: str, old: str, new: str, folder: Path) -> str:
    text = (data_dir("targets") / f"{target}.yaml").read_text(encoding="utf-8")
    assert old in text
    (folder / "other.yaml").write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(KilnError) as caught:
        load_target(folder / "other.yaml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("target", "triple"), TRIPLES)
def test_a_triple_of_no_system(target: str, triple: str, tmp_path: Path) -> None:
    told = complaint(target, f"triple: {load_target(target).triple}", f"triple: {triple}", tmp_path)
    assert f":3: key 'triple': '{triple}' names no system and ABI that Kiln knows: " in told
    assert told.endswith(" expected")


@pytest.mark.parametrize(("target", "old", "new", "told"), OTHERS)
def test_keys_that_contradict_each_other(target: str, old: str, new: str, told: str, tmp_path: Path) -> None:
    assert told in complaint(target, old, new, tmp_path)


@pytest.mark.parametrize(
    ("target", "triple"),
    [
        ("aarch64", "aarch64-pc-linux-gnu"),
        ("cortex_m4", "thumbv7em-unknown-none-eabihf"),
        ("riscv32_imac", "riscv32-unknown-elf"),
        ("macos_arm64", "aarch64-apple-darwin21.0"),
        ("ios_arm64", "aarch64-apple-ios"),
    ],
)
def test_other_triples_of_the_same_machine(target: str, triple: str, tmp_path: Path) -> None:
    text = (data_dir("targets") / f"{target}.yaml").read_text(encoding="utf-8")
    path = tmp_path / "other.yaml"
    path.write_text(text.replace(load_target(target).triple, triple), encoding="utf-8")
    assert load_target(path).system is load_target(target).system
