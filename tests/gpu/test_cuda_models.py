"""Real models for GPUs: machine code for every architecture of the targets, and golden vectors on the CPU."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import scons_real
from elftools.elf.elffile import ELFFile
from kiln.config import load_target
from kiln.emit.plan_view import cuda_image

from . import double, small_models
from .conftest import TARGET
from .test_cuda_kernels import images_of

pytestmark = pytest.mark.slow


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")
@pytest.mark.parametrize(
    ("model", "byoc"),
    [
        *(
            pytest.param(model, "none", marks=pytest.mark.heavy)
            for model in ("attention", "magika", "mobilenet_v2", "resnet50", "efficientnet_lite0")
        ),
        pytest.param("resnet18", "cutlass", marks=pytest.mark.heavy),
    ],
)
def test_golden_vectors(model: str, byoc: str, tmp_path: Path) -> None:
    """Kernels run on the CPU, in every bucket of the model; attention and magika have one of each kind.

    In the gate, test_cuda_session.py does so with one bucket, test_cuda_libraries.py with one of each kind.
    """
    folder = scons_real.own_project(tmp_path)
    if model == "attention":
        small_models.write(folder, "[1, {pad: 4}]")
    words = f"target={TARGET}", f"model={model}", f"byoc={byoc}"
    scons_real.build_with_tree(folder, *words)
    stages = folder / "build" / ".stages" / TARGET / model
    source = (stages / "objects" / f"{model}.cu").read_text(encoding="utf-8")
    external_source = stages / "objects" / f"{model}_external.cu"
    external = external_source.read_text(encoding="utf-8") if byoc != "none" else ""
    kernels = double.kernels_on_cpu(
        source, double.read_plan(stages), tmp_path / "kernels.so", external=external
    )
    environment = {
        "LD_LIBRARY_PATH": str(double.driver(tmp_path / "driver")),
        "KILN_FAKE_KERNELS": str(kernels),
    }
    printed = scons_real.build_with_tree(folder, *words, "test", **environment)
    assert "checks of repeated runs, guards and wrong arguments ok" in printed


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.heavy) for n in ("cuda", "cuda_sm75", "cuda_sm87", "cuda_sm90")],
)
def test_every_target_builds(name: str, tmp_path: Path) -> None:
    folder = scons_real.own_project(tmp_path)
    scons_real.build_with_tree(folder, f"target={name}", "model=resnet")
    target = load_target(name)
    assert target.cuda is not None
    image = (
        folder / "build" / ".stages" / name / "resnet" / "objects" / f"{cuda_image('resnet')}.fatbin"
    ).read_bytes()
    expected = [(2, int(arch[3:])) for arch in target.cuda.archs]
    expected += [(1, int(target.cuda.newest[3:]))] if target.cuda.ptx else []
    assert images_of(image) == expected
    with (folder / "build" / name / "resnet" / "lib" / "libresnet.so").open("rb") as stream:
        elf = ELFFile(stream)
        assert elf["e_machine"] == {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[target.arch]
        needed = [t.needed for t in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert needed == ["libc.so.6"], "the driver is no library of the bundle"
