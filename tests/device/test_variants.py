"""Bundles with variants: one program chooses by the processor, and each variant gives the golden outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kiln.config import load_target
from kiln.device.check.execute import BundleProgram, execute
from kiln.device.check.runners.qemu_user import open_runner
from kiln.errors import KilnError
from networks import normal, save_network
from onnx import TensorProto, helper

from .building import Project, write_small_network

pytestmark = pytest.mark.heavy
HASWELL = "Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid"
# By processor of QEMU: the variant that kiln_open has to choose, and one that it has to refuse.
CHOSEN = {
    "x86_64_v2": {"Nehalem": ("v2", "v3"), HASWELL: ("v3", "v4")},
    "aarch64": {"cortex-a53": ("base", "dotprod"), "cortex-a72": ("base", "i8mm"),
                "cortex-a76": ("dotprod", "i8mm"), "neoverse-n1": ("dotprod", "i8mm"),
                "a64fx": ("base", "dotprod"), "max,sve=off": ("i8mm", None), "max": ("i8mm", None)},
    "armv7": {"cortex-a8": ("base", "vfpv4"), "cortex-a9": ("base", "vfpv4"), "cortex-a7": ("vfpv4", None),
              "cortex-a15": ("vfpv4", None), "max": ("vfpv4", None)},
    # By the length of SVE's registers, which longer ones than the kernels' do not change.
    "aarch64_sve": {"cortex-a72": ("base", "sve256"), "cortex-a76": ("dotprod", "sve256"),
                    "max,sve256=off": ("i8mm", "sve256"), "max,sve512=off": ("sve256", "sve512"),
                    "max,sve512=on": ("sve512", None), "a64fx": ("sve512", "dotprod"),
                    "max,sve2048=on,sve-default-vector-length=-1": ("sve512", None)},
}  # fmt: skip


def _write_mixed_network(path: Path) -> Path:
    """An ONNX file with products of floats and of integers: every variant has kernels of its own."""
    nodes = [
        helper.make_node("Mul", ["x", "fifty"], ["scaled"], name="scaled"),
        helper.make_node("Clip", ["scaled", "least", "greatest"], ["clipped"], name="clipped"),
        helper.make_node("Cast", ["clipped"], ["levels"], to=TensorProto.UINT8, name="levels"),
        helper.make_node("MatMulInteger", ["levels", "w8"], ["sums"], name="integers"),
        helper.make_node("Cast", ["sums"], ["y"], to=TensorProto.FLOAT, name="y"),
        helper.make_node("MatMul", ["x", "w"], ["z"], name="floats"),
    ]
    limits = {name: np.float32(value) for name, value in (("fifty", 50), ("least", 0), ("greatest", 255))}
    w8 = np.random.default_rng(5).integers(-128, 128, (64, 24), np.int8)
    weights = {**normal(4, 0.4, w=(64, 24)), **limits, "w8": w8}
    outputs = {"y": [16, 24], "z": [16, 24]}
    return save_network(path, nodes, {"x": [16, 64]}, outputs, weights)


@pytest.mark.parametrize("name", CHOSEN)
def test_each_processor_runs_its_variant(name: str, tmp_path: Path) -> None:
    project = Project(tmp_path, variants=True)
    _write_mixed_network(project.folder / "net.onnx")
    project.make(f"target={name}", "model=net.onnx")
    bundle, target = project.bundle(name, "net"), load_target(name)
    program = bundle.link_program(target, tmp_path / "work")
    vectors = bundle.vectors()
    inputs = [vector.inputs for vector in vectors]
    dtypes = [entry.dtype for entry in vectors[0].output_entries]
    for cpu, (chosen, refused) in CHOSEN[name].items():
        assert target.emulator is not None
        emulator = target.emulator.model_copy(update={"args": ["-cpu", cpu]})
        runner = open_runner(target.model_copy(update={"emulator": emulator}))
        outcome = execute(BundleProgram(bundle, program, runner), inputs, dtypes)
        assert outcome.variant == chosen
        for vector, outputs in zip(vectors, outcome.outputs, strict=True):
            for got, want in zip(outputs, vector.outputs, strict=True):
                assert abs(got - want).max() <= 1e-5 * max(1.0, abs(want).max())
        if refused is not None:
            with pytest.raises(KilnError, match=r"lacks .* which the model's kernels are compiled for"):
                execute(BundleProgram(bundle, program, runner), inputs, dtypes, variant=refused)
        with pytest.raises(KilnError, match="v9: the model has no variant of this name"):
            execute(BundleProgram(bundle, program, runner), inputs, dtypes, variant="v9")


@pytest.mark.parametrize("model", ["resnet", "silero_vad", "ppocr_cls"])
def test_kernels_of_scalable_vectors_in_models(model: str, tmp_path: Path) -> None:
    """With registers as long as the kernels' vectors, in each variant's emulator, and with longer ones."""
    project = Project(tmp_path, variants=True)
    printed = project.make("target=aarch64_sve", f"model={model}", "test")
    assert "variant sve256 (qemu" in printed and "variant sve512 (qemu" in printed
    bundle, target = project.bundle("aarch64_sve", model), load_target("aarch64_sve")
    program, vectors = bundle.link_program(target, tmp_path / "work"), bundle.vectors()
    dtypes = [entry.dtype for entry in vectors[0].output_entries]
    for variant, cpu in (
        ("sve256", "max,sve512=on"),
        ("sve512", "max,sve1024=on,sve-default-vector-length=-1"),
    ):
        assert target.emulator is not None
        emulator = target.emulator.model_copy(update={"args": ["-cpu", cpu]})
        runner = open_runner(target.model_copy(update={"emulator": emulator}))
        inputs = [vector.inputs for vector in vectors]
        outcome = execute(BundleProgram(bundle, program, runner), inputs, dtypes, variant=variant)
        for vector, outputs in zip(vectors, outcome.outputs, strict=True):
            for got, want in zip(outputs, vector.outputs, strict=True):
                assert abs(got.astype("f8") - want.astype("f8")).max() <= max(
                    1.0, abs(want).max()
                ) * 1e-4 or (got.dtype == "int8" and abs(got.astype("i4") - want.astype("i4")).max() <= 1)


def test_all_variants_are_tested_or_named_and_can_be_left_out(tmp_path: Path) -> None:
    project = Project(tmp_path, variants=True)
    _write_mixed_network(project.folder / "net.onnx")
    printed = project.make("target=x86_64_v2", "model=net.onnx", "test", "size")
    for variant in load_target("x86_64_v2").variant_names:
        assert f"net on x86_64_v2, variant {variant}" in printed
    assert "kernels of each variant, bytes" in printed
    printed = project.make("target=x86_64_v2", "model=net.onnx", "variants=v3", "test", "size")
    assert "variant v" not in printed and "kernels of each variant" not in printed
    done = project.scons("target=x86_64_v2", "model=net.onnx", "variants=v3,v9")
    assert done.returncode == 2
    assert "option 'variants': 'v9' is not a variant of target 'x86_64_v2': v2, v3, v4" in done.stderr


def test_variants_for_integers_are_left_out_of_a_model_of_floats(tmp_path: Path) -> None:
    project = Project(tmp_path, variants=True)
    write_small_network(project.folder / "net.onnx")
    printed = project.make("target=x86_64", "model=net.onnx", "test", "size")
    assert project.bundle("x86_64", "net").variants(load_target("x86_64")) == ["v3", "v4"]
    assert "variant v3 (" in printed and "variant v4" in printed and "vnni" not in printed
