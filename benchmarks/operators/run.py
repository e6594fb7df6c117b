"""`./kiln bench operators`: models of one to three operators in Kiln and in ONNX Runtime, by loss.

The cases are built for one target or variant, and timed on one core in turns with ONNX Runtime, which takes
whatever vectors the processor has. `operators-<target>.md` lists all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln.config.library import load_variant
from kiln.errors import KilnError
from kiln.files import atomic_write

from benchmarks.machine import description
from benchmarks.operators.build import build_all
from benchmarks.operators.cases import cases
from benchmarks.tables import markdown
from benchmarks.timing import geometric_mean
from benchmarks.workers import ROOT, say

# Greatest difference from ONNX Runtime, of the largest value: float16 has 1e-3 itself. A case of integers may
# differ by one level: the sums are rounded once, and scaled in another order.
_ERROR, _ERROR_OF_INTEGERS = 1e-3, 1e-2


def run(
    targets: Sequence[str], words: Sequence[str], seconds: float, cpu: int, work: Path, out: Path
) -> None:
    """Build the cases whose names contain one of `words`, measure each for `seconds`, write the tables."""
    for target in targets:
        chosen = cases(words)
        if not chosen:
            raise KilnError(f"--only {','.join(words)}: no case has one of these words in its name")
        folder = work / "operators" / target.replace(":", "-")
        shutil.rmtree(folder, ignore_errors=True)
        say(f"{target}: {len(chosen)} cases are built")
        build_all(chosen, load_variant(target), folder)
        results = _measured(folder, len(chosen), seconds, cpu)
        text = f"{description([cpu])}.\n\n{table(results, target)}"
        atomic_write(out / f"operators-{target.replace(':', '-')}.md", text)
        print(text)


def _measured(folder: Path, count: int, seconds: float, cpu: int) -> list[dict[str, Any]]:
    """The results of measure.py, one for each case, from a process pinned to the core `cpu`."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.operators.measure",
        str(folder),
        "0",
        str(count),
        str(seconds),
    ]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "build_tools")])
    environment = {**os.environ, "PYTHONPATH": paths}

    def pinned() -> None:
        os.sched_setaffinity(0, {cpu})

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=pinned
    ) as process:
        assert process.stdout is not None
        results = [json.loads(line) for line in process.stdout]
    if process.returncode:
        raise KilnError(f"benchmarks.operators.measure ended with status {process.returncode}")
    return results


def table(results: Sequence[dict[str, Any]], target: str) -> str:
    """Markdown: the cases, the greatest loss of time first, then the cases without a time and the reason."""
    timed = [one for one in results if "failed" not in one]
    ratios = [one["onnxruntime"] / one["kiln"] for one in timed]
    rows = [
        [
            one["name"], f"{one['kiln'] * 1e6:.1f}", f"{one['onnxruntime'] * 1e6:.1f}",
            f"{one['onnxruntime'] / one['kiln']:.2f}", f"{one['error']:.0e}", str(len(one["steps"])),
        ]
        for one in sorted(timed, key=lambda one: one["onnxruntime"] - one["kiln"])
    ]  # fmt: skip
    behind = sum(ratio < 1 for ratio in ratios)
    head = f"{len(timed)} cases on `{target}`, {behind} of them slower than ONNX Runtime; "
    head += f"geometric mean of the ratio {geometric_mean(ratios):.2f}.\n\n"
    header = ["case", "Kiln, µs", "ONNX Runtime, µs", "ratio", "difference", "steps"]
    failures = [f"\n{one['name']}: {one['failed']}\n" for one in results if "failed" in one]
    wrong = [f"\n{one['name']}: differs by {one['error']:.1e}\n" for one in timed if not _agrees(one)]
    return head + markdown(header, rows) + "".join([*wrong, *failures])


def _agrees(result: dict[str, Any]) -> bool:
    """Whether a case's difference from ONNX Runtime is within its limit."""
    limit = _ERROR_OF_INTEGERS if result["name"].startswith("int8 ") else _ERROR
    return bool(result["error"] <= limit)
