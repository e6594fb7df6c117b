"""One contender in a process of its own, pinned: `python -m benchmarks.worker REQUEST` with REQUEST as JSON.

Runs in the peers' environment, with the standard library and numpy. Answers are lines of JSON on the original
stdout; whatever a framework prints goes to stderr.

  {"do": "version"}  → {"version": …, "missing": [distributions], "sources": [formats], "isas": [of "isa"]}
  {"do": "convert"}  → {"file": …}
  {"do": "first"}    → {"monotonic": seconds at the first output, "rss": bytes, "mapped": [files]}
                       (a peer of null: nothing but numpy)
  {"do": "runs"}     → {"error": …} after so many runs as "runs" says
  {"do": "stream"}   → {}, then for every line on stdin {"times": [s of each input]}
  {"do": "turns"}    → {"error": …, "held": …}, then for every line "SECONDS" on stdin
                       {"wall": [s], "cpu": [s]}
"isa": the instruction set that the peer is held to, if it can be; "variant": the one of Kiln that runs.
"held" is false where kernels of this model use wider instructions all the same.
Anything that fails is {"failed": "one line"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

WARM_UP = 0.03  # seconds, and never less than two runs
MOST_RUNS = 2000  # of one turn
LEAST_RUNS = 3


def main() -> None:
    """Serve one request."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    request = json.loads(sys.argv[1])
    if "cpus" in request:
        os.sched_setaffinity(0, request["cpus"])
    try:
        serve(request, answers)
    except Exception as error:  # the parent goes on without this contender
        text = " ".join(f"{type(error).__name__}: {error}".split())
        _say(answers, {"failed": text[:300]})
    answers.flush()
    os._exit(0)  # a framework's destructors are not what is measured, and some crash


def serve(request: dict[str, Any], answers: IO[str]) -> None:
    """Carry out the request; write its answers as lines of JSON."""
    from benchmarks.peers import KILN, load_peer

    if request["peer"] is None:
        read_inputs(request["interface"])
        _say(answers, {"monotonic": time.monotonic(), "rss": peak_rss(), "mapped": []})
        return
    peer = load_peer(request["peer"])
    isas = getattr(peer, "ISAS", {})
    if request["do"] == "version":
        _say(answers, {**versions(peer.DISTRIBUTIONS), "sources": peer.SOURCES, "isas": sorted(isas)})
        return
    os.environ.update(isas.get(request.get("isa"), {}))  # before the framework is loaded
    interface = request["interface"]
    if request["do"] == "convert":
        file = peer.convert(Path(request["source"]), interface, Path(request["folder"]))
        _say(answers, {"file": str(file)})
        return
    if request["do"] == "stream":
        stream(request, peer, answers)
        return
    variant = {"variant": request["variant"]} if request.get("variant") else {}
    run = peer.load(Path(request["file"]), interface, read_inputs(interface), request["threads"], **variant)
    for _ in range(request.get("runs", 1)):
        outputs = run()
    if request["do"] == "first":
        done = time.monotonic()
        _say(answers, {"monotonic": done, "rss": peak_rss(), "mapped": mapped_libraries(peer)})
        return
    held = request["peer"] == KILN or (request.get("isa") in {None, *isas} and getattr(run, "held", True))
    _say(answers, {"error": largest_error(outputs, interface), "held": held})
    if request["do"] == "runs":
        return
    for line in sys.stdin:
        _say(answers, measure(run, float(line)))


def stream(request: dict[str, Any], peer: Any, answers: IO[str]) -> None:
    """Run all inputs in the given order, once for every line on stdin; each size has been run once before."""
    import numpy as np

    run = peer.load_stream(Path(request["file"]), request["interface"], request["threads"])
    items = [([_tensor(np, t) for t in item["inputs"]], item["dims"]) for item in request["items"]]
    clock = time.process_time if request["clock"] == "cpu" else time.perf_counter
    for item in items:
        run(*item)
    _say(answers, {})
    for _line in sys.stdin:
        times = []
        for number in request["order"]:
            before = clock()
            run(*items[number])
            times.append(clock() - before)
        _say(answers, {"times": times})


def measure(run: Any, seconds: float) -> dict[str, list[float]]:
    """Warm up, then run for so long; wall and processor time of every run, in seconds."""
    started, warm = time.perf_counter(), 0
    while warm < 2 or time.perf_counter() - started < WARM_UP:
        run()
        warm += 1
    wall: list[float] = []
    cpu: list[float] = []
    started = time.perf_counter()
    while len(wall) < LEAST_RUNS or (time.perf_counter() - started < seconds and len(wall) < MOST_RUNS):
        cpu_before = time.process_time()
        before = time.perf_counter()
        run()
        after = time.perf_counter()
        cpu.append(time.process_time() - cpu_before)
        wall.append(after - before)
    return {"wall": wall, "cpu": cpu}


def versions(distributions: Any) -> dict[str, Any]:
    """The version of the first installed distribution, and the names of the missing ones."""
    from importlib import metadata

    installed, missing = [], []
    for name in distributions:
        try:
            installed.append(metadata.version(name))
        except metadata.PackageNotFoundError:
            missing.append(name)
    return {"version": "".join(installed[:1]), "missing": missing}


def read_inputs(interface: dict[str, Any]) -> list[Any]:
    """The input tensors of the golden vector."""
    import numpy as np

    return [_tensor(np, t) for t in interface["inputs"]]


def largest_error(outputs: Any, interface: dict[str, Any]) -> float:
    """Largest |got - reference| over the largest |reference|; outputs may come in any order and layout."""
    import numpy as np

    got = [np.asarray(value).astype(np.float64).ravel() for value in outputs]
    worst = 0.0
    for tensor in interface["outputs"]:
        want = _tensor(np, tensor).astype(np.float64).ravel()
        scale = float(np.abs(want).max()) or 1.0
        errors = [float(np.abs(value - want).max()) / scale for value in got if value.size == want.size]
        if not errors:
            raise RuntimeError(f"no output of {want.size} elements, as {tensor['name']} has")
        least = min(errors)
        if not np.isfinite(least):  # a NaN compares as no error at all
            raise RuntimeError(f"{tensor['name']}: what comes out is no number")
        worst = max(worst, least)
    return worst


def peak_rss() -> int:
    """The most memory this process held, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def mapped_libraries(peer: Any) -> list[str]:
    """Shared objects mapped now that are neither Python's, nor numpy's, nor the system's.

    A peer's RUNTIME says which of them a program without Python would need.
    """
    paths = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return sorted(
        path
        for path in paths
        if ".so" in Path(path).name
        and getattr(peer, "RUNTIME", "/site-packages/") in path
        and "/site-packages/numpy" not in path
    )


def _tensor(np: Any, entry: dict[str, Any]) -> Any:
    return np.fromfile(entry["file"], entry["dtype"]).reshape(entry["shape"])


def _say(answers: IO[str], value: Any) -> None:
    answers.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    main()
