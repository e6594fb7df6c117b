"""Times subjects against each other: alternating, on cold weights, best of several rounds of CPU time."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tvm

from kiln.config import Target
from kiln.emit.objects import compile_object
from kiln.errors import KilnError
from kiln.toolchain import compiler_command
from kiln.toolchain import run as run_tool
from kiln.tune.subject import Subject

# Copies of the weights are this large together: more than the last-level cache of a core's share.
COLD_BYTES = 64 << 20
ROUNDS = (6, 40)  # at least, at most
SECONDS = 0.08  # of CPU time for each subject, where its rounds allow
# Results of two candidates may differ by this share of the greatest value (Winograd F4 on unit data).
AGREEMENT = 1e-3


def library_of(subjects: Sequence[Subject], target: Target, folder: Path, name: str) -> ctypes.CDLL:
    """All kernels of the subjects, compiled and loaded into this process."""
    functions: dict[str, tvm.tirx.PrimFunc] = {}
    for subject in subjects:
        functions.update(subject.functions)
    made, shared = folder / f"{name}.o", folder / f"{name}.so"
    compile_object(functions, target, made)
    run_tool(
        [*compiler_command(target), "-shared", str(made), "-o", str(shared)],
        f"linking the kernels of {name}",
    )
    return ctypes.CDLL(str(shared))


def best_times(subjects: Sequence[Subject], target: Target) -> list[float]:
    """Microseconds of each subject. Raises KilnError when two of one key compute different results."""
    by_key: dict[str, list[int]] = {}
    for index, subject in enumerate(subjects):
        by_key.setdefault(subject.key, []).append(index)
    times = [0.0] * len(subjects)
    with tempfile.TemporaryDirectory() as place:
        library = library_of(subjects, target, Path(place), "candidates")
        for key, indices in by_key.items():
            group = [subjects[index] for index in indices]
            for index, time in zip(indices, _race(key, group, library), strict=True):
                times[index] = time
    return times


def _race(key: str, group: Sequence[Subject], library: ctypes.CDLL) -> list[float]:
    for subject in group:
        subject.load(library, COLD_BYTES)
    first = [subject.run() for subject in group]
    outputs = [subject.output() for subject in group]
    scale = float(np.abs(outputs[0]).max(initial=1.0))
    for subject, output in zip(group, outputs, strict=True):
        if not np.abs(output - outputs[0]).max(initial=0.0) <= AGREEMENT * scale:
            raise KilnError(f"tune: {key}: {subject.choice.describe()} computes other results than the rules")
    least, most = ROUNDS
    rounds = int(min(most, max(least, SECONDS * 1e9 * len(group) / max(1, sum(first)))))
    taken = [[subject.run() for subject in group] for _ in range(rounds)]
    for subject in group:
        subject.unload()
    return [min(column) / 1e3 for column in zip(*taken, strict=True)]
