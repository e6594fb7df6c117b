"""Special contents of an input on a GPU, and a running sum and topk in a bundle, against stand-ins.

The model: rows multiplied by a mask, their running sums, and the largest of each.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest
import scons_real
from kiln.config import load_target
from kiln.device.bundle import open_bundle
from kiln.device.vector_files import encode
from kiln.toolchain import link, oldest_cpu_command
from networks import save_network
from onnx import helper

from . import double, pack
from .conftest import TARGET

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")

_NAME, _ROWS, _WIDTH = "masked", 7, 19
_YAML = f"""\
source: {{kind: file, path: ../{_NAME}.onnx}}
format: onnx
inputs:
  x: {{shape: [{_ROWS}, {_WIDTH}], dtype: float32}}
  mask: {{shape: [{_ROWS}, {_WIDTH}], dtype: float32}}
special_cases:
  - {{input: mask, value: ones}}
  - {{input: mask, value: zeros}}
golden:
  inputs:
    - {{kind: normal, seed: 1}}
tolerance: {{absolute: 1e-5, relative: 1e-4}}
"""


def _write(folder: Path) -> None:
    node = helper.make_node
    nodes = [
        node("Mul", ["x", "mask"], ["masked"]),
        node("CumSum", ["masked", "axis"], ["y"]),
        node("TopK", ["masked", "k"], ["values", "where"], axis=1),
    ]
    constants = {"axis": np.array(1), "k": np.array([4])}
    rows, top = [_ROWS, _WIDTH], [_ROWS, 4]
    output_shapes = {"y": rows, "values": top, "where": top}
    save_network(
        folder / f"{_NAME}.onnx", nodes, {"x": rows, "mask": rows}, output_shapes, constants, int64=["where"]
    )
    (folder / "models" / f"{_NAME}.yaml").write_text(_YAML, encoding="utf-8")


def _check_converted(bundle: Path, driver: Path, kernels: Path, work: Path) -> None:
    """Pixels of uint8 in place of float32, in a bundle: the kernel is in its image, and the plan knows it."""
    opened = open_bundle(bundle)
    program = opened.link_program(load_target(TARGET), work / "linked", pack.CONVERTED)
    (work / "inputs.bin").write_bytes(encode([vector.inputs for vector in opened.vectors()]))
    done = subprocess.run(
        [str(program), str(work / "inputs.bin"), "-", "1"], env=double.environment(driver, kernels=kernels),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("inputs\t2\nsame\t1\n") and "\nuint8\t" in done.stdout


@pytest.mark.heavy
def test_special_contents(tmp_path: Path) -> None:
    folder = scons_real.own_project(tmp_path / "project")
    _write(folder)
    words = f"target={TARGET}", f"model={_NAME}"
    scons_real.build_with_tree(folder, *words)
    stages = folder / "build" / ".stages" / TARGET / _NAME
    source = (stages / "objects" / f"{_NAME}.cu").read_text(encoding="utf-8")
    kernels = double.kernels_on_cpu(source, double.read_plan(stages), tmp_path / "kernels.so")
    driver = double.driver(tmp_path / "driver")
    environment = {"LD_LIBRARY_PATH": str(driver), "KILN_FAKE_KERNELS": str(kernels)}
    printed = scons_real.build_with_tree(folder, *words, "test", **environment)
    assert "checks of repeated runs, guards and wrong arguments ok" in printed
    _check_converted(folder / "build" / TARGET / _NAME, driver, kernels, tmp_path)

    random = np.random.default_rng(3)
    x = random.standard_normal((_ROWS, _WIDTH), np.float32)
    masks = {"any": random.standard_normal(x.shape, np.float32), "ones": np.ones_like(x)}
    masks["zeros"] = np.zeros_like(x)
    x.tofile(tmp_path / "x.bin")
    for name, mask in masks.items():
        mask.tofile(tmp_path / f"mask_{name}.bin")
    bundle, program = folder / "build" / TARGET / _NAME, tmp_path / "try_special"
    flags = [f'-DKILN_HEADER="{_NAME}.h"', f"-DKILN_MODEL={_NAME}", f"-I{bundle / 'include'}", "-std=c11"]
    files = [str(double.HERE / "try_special.c"), str(bundle / "lib" / f"lib{_NAME}.a"), "-o", str(program)]
    target = load_target(TARGET)
    link(target, [*oldest_cpu_command(target), "-O2", *flags, *files], "linking try_special")
    done = subprocess.run(
        [str(program), str(tmp_path)], env=double.environment(driver, kernels=kernels),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    taken = {}
    for line in done.stdout.splitlines():
        mask, memory, status, bucket, output = line.split("\t")
        assert status == "KILN_OK"
        want = np.cumsum(x * masks[mask.removeprefix("mask_")], 1)
        got = np.frombuffer(bytes.fromhex(output), np.float32).reshape(x.shape)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"{mask} {memory}")
        taken[mask, memory] = bucket
    (general,) = {taken["mask_any", memory] for memory in ("plain", "pinned", "gpu")}
    assert taken["mask_ones", "gpu"] == taken["mask_zeros", "gpu"] == general
    for mask in ("mask_ones", "mask_zeros"):
        assert taken[mask, "plain"] == taken[mask, "pinned"] != general
    assert taken["mask_ones", "plain"] != taken["mask_zeros", "plain"]
