"""How far a microcontroller's outputs are from LiteRT's reference kernels; the least arena with patches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from kiln.arrays import Array
from kiln.config import Target
from kiln.device.bundle import Bundle, GoldenVector
from kiln.device.check.execute import BundleProgram, execute
from kiln.device.check.runners import runner_for
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.golden.reference import LiteRt
from kiln.paths import data_dir
from kiln.plan.schema import read_plan

from benchmarks.contenders import Folders
from benchmarks.workers import ROOT, say

_NEVER = 1  # a budget in bytes that no plan keeps: the build then chooses the plan of the least arena


def difference(vectors: Sequence[GoldenVector], outputs: Sequence[Sequence[Array]]) -> str:
    """The greatest difference from the golden outputs as text: in levels for integers."""
    return _greatest_difference([vector.outputs for vector in vectors], outputs)


def _greatest_difference(expected: Sequence[Sequence[Array]], outputs: Sequence[Sequence[Array]]) -> str:
    worst, levels = 0.0, True
    for references, arrays in zip(expected, outputs, strict=True):
        for reference, array in zip(references, arrays, strict=True):
            differences = np.abs(reference.astype(np.float64) - array.astype(np.float64))
            worst = max(worst, float(differences.max(initial=0.0)))
            levels = levels and np.issubdtype(reference.dtype, np.integer)
    return f"{worst:.0f} levels" if levels else f"{worst:.2g}"


def outputs_of(bundle: Bundle, target: Target, work: Path) -> list[list[Array]]:
    """The bundle's outputs of its golden vectors, on the target's emulated machine. Raises KilnError."""
    vectors = bundle.vectors()
    dtypes = [entry.dtype for entry in vectors[0].output_entries]
    inputs = [vector.inputs for vector in vectors]
    program = bundle.link_program(target, work)
    return execute(
        BundleProgram(bundle, program, runner_for(target)), inputs, dtypes, runs=bundle.runs()
    ).outputs


def from_reference_kernels(
    model: Path, vectors: Sequence[GoldenVector], runs: int, outputs: Sequence[Sequence[Array]]
) -> str:
    """The greatest difference of `outputs` from LiteRT's reference kernels (BUILTIN_REF), as text.

    `model`: the .tflite file; `runs`: vectors that follow one another before variables begin again.
    """
    reference, expected = LiteRt(model, "builtin_ref"), list[list[Array]]()
    for number, vector in enumerate(vectors):
        if number % runs == 0:
            reference.reset()
        expected.append(list(reference.run(vector.inputs)))
    return _greatest_difference(expected, outputs)


def least_arena(given: str, model: str, target: str, folders: Folders) -> tuple[int, float] | None:
    """Bytes of the least arena with layers in patches, and the share of multiply-adds that they add.

    `given`: the model's name, or the path of its file. None where patches save nothing. Raises KilnError.
    """
    name = f"{model}_patches"
    config = folders.work / "patches" / f"{name}.yaml"
    if Path(given).suffix:
        about: dict[str, Any] = {"source": {"kind": "file", "path": given}}
    else:
        about = yaml.safe_load((data_dir("models") / f"{given}.yaml").read_text())
    about["budget"] = {**(about.get("budget") or {}), "ram_bytes": _NEVER}
    atomic_write(config, yaml.safe_dump(about))
    say(f"{model} on {target}: patches")
    command = [sys.executable, "-m", "SCons", "-Q", "-C", str(ROOT), f"target={target}", f"model={config}"]
    done = subprocess.run([*command, "plan"], check=False, capture_output=True, text=True)
    plan = folders.build / ".stages" / target / name / "plan" / "plan.json"
    if done.returncode != 0 or not plan.is_file():
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line]
        raise KilnError(f"{name} on {target}: {(lines or ['the plan failed'])[0]}")
    bucket = max(read_plan(plan).buckets, key=lambda one: one.arena_bytes)
    if bucket.patches is None:
        return None
    macs = sum(step.macs or 0 for step in bucket.steps)
    return bucket.arena_bytes, bucket.patches.more_macs / max(1, macs - bucket.patches.more_macs)
