"""Times a bundle beside ONNX Runtime, in turns on one core: python -m zoo.speed FILE BUNDLE ROUNDS CPU.

Prints a JSON list with a number for each size of the golden vectors' inputs: the median over the rounds of
ONNX Runtime's time divided by Kiln's. Both are called from Python with the first golden vector of that size,
in turns of at least 20 ms, whose fastest run counts: what interrupts a machine makes runs longer, never
shorter.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kiln
import numpy as np
import numpy.typing as npt
import onnxruntime
from kiln.files import read_json
from kiln.runtime import Network

TURN = 0.02  # seconds
Values = dict[str, npt.NDArray[Any]]  # by input


def main(file: Path, bundle: Path, rounds: int, cpu: int) -> None:
    """Measure and print."""
    os.sched_setaffinity(0, {cpu})
    net = kiln.load(bundle)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    ratios = (_ratio(net, session, values, rounds) for values in vectors(bundle))
    print(json.dumps([round(ratio, 4) for ratio in ratios if ratio is not None]))


def vectors(bundle: Path) -> list[Values]:
    """The inputs of the first golden vector of each size."""
    by_size: dict[tuple[tuple[int, ...], ...], Values] = {}
    for vector in read_json(bundle / "golden/golden.json")["vectors"]:
        values = {}
        for stored in vector["inputs"]:
            data = np.fromfile(bundle / "golden" / stored["file"], stored["dtype"])
            values[stored["name"]] = data.reshape(stored["shape"])
        by_size.setdefault(tuple(value.shape for value in values.values()), values)
    return list(by_size.values())


def _ratio(net: Network, session: onnxruntime.InferenceSession, values: Values, rounds: int) -> float | None:
    """The median over the rounds of ONNX Runtime's time divided by Kiln's, for one set of inputs.

    None where ONNX Runtime fails: its optimisations write some sizes of the export's example into the graph,
    where the reference, which runs without them, is right.
    """
    turns: list[Callable[[], object]] = [net.bind(values), lambda: session.run(None, values)]
    turns[0]()
    try:
        turns[1]()
    except Exception:  # ONNX Runtime's errors have no other class in common
        return None
    ratios = []
    for number in range(rounds):
        times = {}
        for which in (0, 1) if number % 2 else (1, 0):
            times[which] = turn(turns[which])
        ratios.append(times[1] / times[0])
    return statistics.median(ratios)


def turn(run: Callable[[], object]) -> float:
    """The time of the fastest of the runs in a turn, at least three."""
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < TURN:
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return min(times)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
