"""Features of processors: which ones kiln_open asks for, on both sides of the build."""

from __future__ import annotations

import re

import pytest
from kiln import toolchain
from kiln.config import cpu_features, load_target
from kiln.emit.bare_cpu import bare_mask
from kiln.errors import KilnError
from kiln.lower.target_check import cpu_features_of
from kiln.paths import data_dir
from tvm.target import Target as TvmTarget
from tvm.target import codegen

TRIPLES = {
    "x86_64": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "armv7": "armv7a-unknown-linux-gnueabihf",
    "riscv64": "riscv64-unknown-linux-gnu",
}
V2 = ["sse3", "cx16", "ssse3", "sse4.1", "sse4.2", "popcnt", "sahf"]
V3 = [*V2, "fma", "movbe", "avx", "f16c", "bmi", "avx2", "bmi2", "lzcnt"]
# Features of RISC-V cores, those of one vendor among them, that Linux does not tell of or Kiln does not know.
REFUSED = {"riscv64": r"x.*|32bit|zcmp|zv?fbf.*"}
A76 = ["fp-armv8", "neon", "lse", "fullfp16", "rdm", "rcpc", "dotprod"]


@pytest.mark.parametrize("arch", TRIPLES)
def test_every_feature_of_every_cpu_is_asked_for_or_listed(arch: str) -> None:
    """None of LLVM's is forgotten: a new one fails here until it is put into one of the two lists."""
    plain = {"kind": "llvm", "mtriple": TRIPLES[arch]}
    cpus = [str(cpu) for cpu in codegen.llvm_get_cpu_archlist(TvmTarget(plain))]
    assert len(cpus) > 40
    features = {
        str(feature)
        for cpu in cpus
        for feature in codegen.llvm_get_cpu_features(TvmTarget({**plain, "mcpu": cpu}))
    }
    features = {one for one in features if not re.fullmatch(REFUSED.get(arch, ""), one)}
    assert set(cpu_features.required_features(arch, features)) <= set(cpu_features.BITS[arch])
    for name in cpu_features.BITS[arch]:
        assert re.fullmatch(cpu_features._NOT_ASKED[arch], name) is None, f"{name} is in both lists"


def test_profiles_of_riscv_are_asked_for_by_their_features() -> None:
    wanted = {"rva20u64": [], "rva22u64": ["zba", "zbb", "zbs", "zfhmin"]}
    wanted["rva23u64"] = ["v", *wanted["rva22u64"], "zvbb", "zvkb", "zvfhmin", "zfa", "zicond", "zcb"]
    for profile, needed in wanted.items():
        words = {"kind": "llvm", "mtriple": TRIPLES["riscv64"], "mattr": [f"+{profile}"]}
        features = map(str, codegen.llvm_get_cpu_features(TvmTarget(words)))
        assert set(cpu_features.required_features("riscv64", features)) == set(needed), profile


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("x86_64", V3),
        ("x86_64_musl", V3),
        ("x86_64_v2", V2),
        ("aarch64", ["fp-armv8", "neon"]),
        ("aarch64_a53", ["fp-armv8", "neon"]),
        ("aarch64_a76", A76),
        ("armv7", ["v7", "dsp", "neon", "vfp3", "d32"]),
        ("riscv64", []),
        ("cuda", []),
        ("cuda_sm87", []),
    ],
)
def test_what_shipped_targets_need(name: str, needed: list[str]) -> None:
    assert sorted(cpu_features_of(load_target(name))) == sorted(needed)


def test_a_feature_that_no_processor_can_be_asked_for_is_refused() -> None:
    target = load_target("aarch64").model_copy(update={"features": ["+sme-lutv2", "+f8f16mm"]})
    with pytest.raises(KilnError, match=r"^target 'aarch64': feature 'f8f16mm': kiln_open cannot ask"):
        cpu_features_of(target)
    bare = target.model_copy(update={"deployment": "freestanding"})
    assert cpu_features_of(bare) == []


def test_a_feature_of_other_cores_without_an_operating_system_is_refused() -> None:
    target = load_target("cortex_m4").model_copy(update={"features": ["+vfp4"]})  # of cores with 32 registers
    told = r"^target 'cortex_m4': feature 'd32': .* out of 'features', .*; allowed: .*vfp4d16sp"
    with pytest.raises(KilnError, match=told):
        bare_mask(target)


def test_the_runtime_has_the_same_bits() -> None:
    """The tables of runtime_c, read as text: the one for ARM has a part for each architecture."""
    folder = data_dir("runtime_c") / "platform"
    arm64, arm32 = (folder / "cpu_arm_linux.c").read_text().split("#else")
    tables = {"x86_64": (folder / "cpu_x86.c").read_text(), "aarch64": arm64, "armv7": arm32}
    tables["riscv64"] = (folder / "cpu_riscv_linux.c").read_text()
    for arch, text in tables.items():
        assert tuple(re.findall(r'\{"([\w.-]+)", [A-Z0-9_]+, \d+[,}]', text)) == cpu_features.BITS[arch]
        assert len(cpu_features.BITS[arch]) <= 64
    assert cpu_features.mask("armv7", ["v7", "neon", "v7"]) == 0b1001


@pytest.mark.parametrize("name", ["x86_64", "aarch64_a76", "armv7", "x86_64_v2", "aarch64_musl", "riscv64"])
def test_what_asks_is_compiled_for_the_oldest_cpu(name: str) -> None:
    target = load_target(name)
    command = toolchain.oldest_cpu_command(target)
    assert [flag for flag in command if flag.startswith("-m") and flag != "-m"] == command[-1:]
    oldest = ("x86_64", "generic", "generic+v7a-neon-d32", "baseline_rv64")
    assert command[-1].removeprefix("-mcpu=") in oldest


def test_flags_that_choose_a_cpu_are_left_out() -> None:
    target = load_target("armv7")
    flags = ["-mcpu=cortex-a9", "-mfloat-abi=hard", "-mfpu=neon", "-mavx2", "-mno-sse4.1", "-g", "-mthumb"]
    target_of_cpu = target.c_compiler.model_copy(update={"kind": "gcc", "command": ["gcc"], "flags": flags})
    target = target.model_copy(update={"c_compiler": target_of_cpu})
    command = toolchain.oldest_cpu_command(target)
    kept = ["-mfloat-abi=hard", "-g", "-mthumb", "-march=armv7-a", "-mfpu=vfpv3-d16"]
    assert command[-5:] == kept
    bare = target.model_copy(update={"deployment": "freestanding"})
    assert toolchain.oldest_cpu_command(bare) == toolchain.compiler_command(target)
