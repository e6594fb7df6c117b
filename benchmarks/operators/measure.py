"""Times built cases and ONNX Runtime: python -m benchmarks.operators.measure FOLDER FROM TO SECONDS.

Runs in one process on the core that it is pinned to. Each case has five turns of each, alternately; a turn's
result is the fastest of its runs, that of a case the median over the turns. Prints a line of JSON per case.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from kiln.files import read_json

TURNS = 5


def aligned(size: int) -> Any:
    """`size` bytes at a multiple of 64."""
    memory = np.zeros(size + 64, "uint8")
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    """The times of Kiln and ONNX Runtime for the case in `folder`, in seconds, and their largest difference.

    The difference is relative to the largest value of the output.
    """
    case = read_json(folder / "case.json")
    if "failed" in case:
        return dict(case)
    with np.load(folder / "inputs.npz") as stored:
        values = {name: stored[name] for name in stored.files}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
    run = ctypes.CDLL(str((folder / "case.so").resolve())).run
    run.restype = None
    params, arena = aligned((folder / "params").stat().st_size), aligned(case["arena"])
    params[:] = np.fromfile(folder / "params", "uint8")
    inputs = [aligned(values[name].nbytes) for name in case["inputs"]]
    for memory, name in zip(inputs, case["inputs"], strict=True):
        memory[:] = np.ascontiguousarray(values[name]).reshape(-1).view("uint8")
    outputs = [aligned(one["bytes"]) for one in case["outputs"]]
    pointers = [
        (ctypes.c_void_p * len(side))(*(one.ctypes.data for one in side)) for side in (inputs, outputs)
    ]
    arguments = ctypes.c_void_p(arena.ctypes.data), ctypes.c_void_p(params.ctypes.data), *pointers
    runs: list[Callable[[], Any]] = [lambda: run(*arguments), lambda: session.run(None, values)]
    expected = runs[1]()
    runs[0]()
    error = 0.0
    for memory, described, want in zip(outputs, case["outputs"], expected, strict=True):
        got = memory.view(described["dtype"]).reshape(want.shape).astype("float64")
        if want.size:
            error = max(error, float(np.abs(got - want).max() / (np.abs(want.astype("float64")).max() or 1)))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(TURNS):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which].append(_turn(runs[which], seconds / 2 / TURNS))
    kiln, peer = (statistics.median(one) for one in times)
    return {"name": case["name"], "kiln": kiln, "onnxruntime": peer, "error": error, "steps": case["steps"]}


def _turn(run: Callable[[], Any], seconds: float) -> float:
    """The fastest run, of at least three."""
    best, count, start = float("inf"), 0, time.perf_counter()
    while count < 3 or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - before)
        count += 1
    return best


def main(folder: Path, begin: int, end: int, seconds: float) -> None:
    """Measure the cases from number `begin` up to, but without, `end`; print a line of JSON for each."""
    for number in range(begin, end):
        case_folder = folder / str(number)
        if not (case_folder / "case.json").exists():
            continue
        try:
            result = measure(case_folder, seconds)
        except Exception as error:
            result = {"name": read_json(case_folder / "case.json")["name"], "failed": str(error)[:300]}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
