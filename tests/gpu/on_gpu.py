"""Run a part of a pack (tests/gpu/pack.py) on a machine with a GPU; write results.json and print tables.

    python3 on_gpu.py [--out FOLDER] [--minutes M] [--repeat N] [--milliseconds T]

In this order, each step with its own time limit, and on after a failure:
1. golden: each bundle on its golden vectors with all checks of run_vectors, then N times again: the outputs
   must be within the limits, and the same bit for bit in every run;
2. sanitize: compute-sanitizer (memcheck, racecheck, initcheck, synccheck) on the five smallest bundles;
3. candidates: times of the kernels that `tune` built, into FOLDER/<case>.times.tsv, which goes back as
   times.tsv into the folder of the candidates;
4. time: host to host, per bucket and step, without and between launches;
5. converted: outputs for pixels of uint8 where a model takes float32, which must be those for the same
   numbers as float32, and the times of both;
6. torch: PyTorch's eager, CUDA graph and torch.compile times of the models that torchvision and timm have;
7. ncu: hardware counters of each kernel of each bundle, into FOLDER/<case>.ncu.csv.
Parameters in pieces are put together from the parts next to this one. When M minutes are over, the steps
that are left are reported as not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kiln.device.vector_files import decode
from kiln.golden.compare import compare, entry_limits

HERE = Path(__file__).resolve().parent
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
_NCU = "gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed,"
_NCU += "dram__throughput.avg.pct_of_peak_sustained_elapsed,launch__occupancy_limit_registers"


class Runs:
    """Runs programs until the time is over; `results` holds what each step found, by step and case."""

    def __init__(self, minutes: float, out: Path) -> None:
        self.end = time.monotonic() + 60 * minutes
        self.out = out
        self.results: dict[str, dict[str, Any]] = {}

    def run(self, words: list[str], folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a program in `folder` for at most `seconds`, or less if less time is left."""
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("not run: the time is over")
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
        try:
            return subprocess.run(
                words, cwd=folder, env=environment, capture_output=True, text=True,
                timeout=min(seconds, left), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"not ended after {error.timeout:.0f} s") from error

    def step(self, name: str, case: str, action: Callable[[], Any]) -> None:
        """Record what `action` returns, or the text of its error, and save all results so far."""
        try:
            result = action()
        except Exception as error:  # whatever fails, the next step runs
            result = {"failed": f"{type(error).__name__}: {error}"}
        self.results.setdefault(name, {})[case] = result
        print(f"{name}\t{case}\t{json.dumps(result)[:400]}", flush=True)
        (self.out / "results.json").write_text(json.dumps(self.results, indent=1), encoding="utf-8")


def joined(folder: Path) -> None:
    """Put a case's parameters together. Raises FileNotFoundError for pieces in parts that are not here."""
    count = json.loads((folder / "case.json").read_text(encoding="utf-8")).get("pieces", 0)
    if count == 0 or (folder / "params.bin").is_file():
        return
    content = b""
    for number in range(count):
        name = f"pieces/{folder.name}/params.bin.{number}"
        pieces = sorted(HERE.parent.glob(f"part*/{name}"))
        if not pieces:
            raise FileNotFoundError(f"{name} is in another part: copy it beside this one")
        content += pieces[0].read_bytes()
    (folder / "params.bin").write_bytes(content)


def candidates(runs: Runs, folder: Path) -> dict[str, Any]:
    """Time a folder of candidates; returns the number of timed ones, and the failed ones.

    After an error that ends the use of the GPU in a process, a new process goes on with the next candidate.
    """
    printed, first = "", "0"
    while True:
        done = runs.run(["./time_gpu", "candidates.txt", "8", str(192 << 20), first], folder, 240)
        printed += done.stdout
        (runs.out / f"{folder.name}.times.tsv").write_text(printed, encoding="utf-8")
        broken = [line.split("\t")[1] for line in done.stdout.splitlines() if line.startswith("broken\t")]
        if done.returncode == 4 and broken and broken[-1] != first:
            first = broken[-1]
            continue
        if done.returncode != 0:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
        lines = printed.splitlines()
        failed = [line for line in lines if line.startswith("failed\t")]
        return {"timed": sum(line.startswith("time\t") for line in lines), "failed": failed}


def golden(runs: Runs, folder: Path, repeat: int) -> dict[str, Any]:
    """Errors beyond the limits, failed checks, and how many of `repeat` further runs gave the same bytes."""
    joined(folder)
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    dtypes = [entry["dtype"] for entry in case["vectors"][0]["outputs"]]
    arguments = ["./run_vectors", "inputs.bin", "outputs.bin", "params.bin"]
    done = runs.run([*arguments, "check", "refused.bin"], folder, 120)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    first = (folder / "outputs.bin").read_bytes()
    faults = [
        line for line in done.stdout.splitlines() if line.startswith("check\t") and "\tfailed\t" in line
    ]
    greatest = 0.0
    wanted = decode((folder / "expected.bin").read_bytes(), dtypes)
    for vector, got, want in zip(case["vectors"], decode(first, dtypes), wanted, strict=True):
        for entry, one, other in zip(vector["outputs"], got, want, strict=True):
            limits = entry_limits(
                case["tolerance"], entry["name"], entry.get("precision"), entry.get("sensitivity")
            )
            difference = compare(one, other, limits, entry["quantised"])
            greatest = max(
                greatest, difference.error / difference.limit if difference.limit else difference.error
            )
            faults += [] if difference.passed else [f"{vector['name']}, {entry['name']}: {difference.detail}"]
    equal_runs, end = 0, time.monotonic() + 60
    for again in range(repeat):
        if time.monotonic() > end:
            repeat = again
            break
        runs.run(arguments, folder, 60)
        equal_runs += (folder / "outputs.bin").read_bytes() == first
    return {"faults": faults, "of_the_limit": round(greatest, 4), "same": equal_runs, "repeated": repeat}


def tool_of_toolkit(name: str) -> str:
    """Path of a program of NVIDIA's toolkit. Raises FileNotFoundError if that machine does not have it."""
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not here")
    return path


def sanitize(runs: Runs, folder: Path, tool: str) -> Any:
    """The last lines of compute-sanitizer's report."""
    program = tool_of_toolkit("compute-sanitizer")
    words = [program, "--tool", tool, "./run_vectors", "inputs.bin", "outputs.bin", "params.bin"]
    done = runs.run(words, folder, 180)
    return {"status": done.returncode, "report": done.stdout.strip().splitlines()[-6:]}


def timed(runs: Runs, folder: Path, milliseconds: int) -> dict[str, Any]:
    """Microseconds by bucket: runs from host to host, those with tensors on the GPU, and each step."""
    words = ["./time_runs", "inputs.bin", "params.bin", "1", str(milliseconds)]
    done = runs.run(words, folder, 120)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    times_of_bucket: dict[str, list[float]] = {}
    placed: dict[str, list[float]] = {}
    steps: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        kind, *fields = line.split("\t")
        if kind == "run":
            times_of_bucket.setdefault(fields[0], []).append(int(fields[1]) / 1e3)
        elif kind == "place":
            placed.setdefault(fields[0], []).append(int(fields[1]) / 1e3)
        elif kind == "step":
            steps.setdefault(fields[0], []).append(int(fields[2]) / 1e3)
    return {
        bucket: {
            "median": statistics.median(found),
            "least": min(found),
            "steps": steps.get(bucket, []),
            "in_place": statistics.median(placed[bucket]),
        }
        for bucket, found in times_of_bucket.items()
    }


def converted(runs: Runs, folder: Path, milliseconds: int) -> dict[str, Any]:
    """Whether inputs of uint8 give the same outputs as float32, and median microseconds of runs with each.

    A model without inputs of float32 has neither.
    """
    words = ["./time_converted", "inputs.bin", "params.bin", str(milliseconds)]
    done = runs.run(words, folder, 120)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    times = {
        kind: [int(value) / 1e3 for word, value in lines if word == kind] for kind in ("float32", "uint8")
    }
    found: dict[str, Any] = {word: int(value) for word, value in lines if word in ("inputs", "same")}
    return found | {kind: statistics.median(values) for kind, values in times.items() if values}


def ncu(runs: Runs, folder: Path, case: str) -> Any:
    """Write ncu's table of the kernels of one run; returns its number of lines."""
    program = tool_of_toolkit("ncu")
    words = [program, "--clock-control", "none", "--csv", "--metrics", _NCU]
    words += ["./run_vectors", "inputs.bin", "outputs.bin", "params.bin"]
    done = runs.run(words, folder, 240)
    (runs.out / f"{case}.ncu.csv").write_text(done.stdout, encoding="utf-8")
    return {"status": done.returncode, "lines": len(done.stdout.splitlines())}


def peers(models: set[str]) -> list[tuple[str, int]]:
    """The models of a part that PyTorch's libraries have, and their batches, by the names of the bundles."""
    found = (re.fullmatch(r"(resnet18|resnet50|mobilenet_v2|vit_tiny)(?:_batch(\d+))?", m) for m in models)
    return sorted((one[1], int(one[2] or 1)) for one in found if one)


def torch_times(name: str, dtype: str, batch: int) -> dict[str, float] | str:
    """Microseconds of a model with random weights: eager, as a CUDA graph, compiled with max-autotune."""
    try:
        import torch
        import torchvision
    except ImportError as error:
        return f"not run: {error.name} is not here"
    if not torch.cuda.is_available():
        return "not run: PyTorch sees no GPU"
    if name == "vit_tiny":
        import timm

        model = timm.create_model("vit_tiny_patch16_224")
    else:
        model = getattr(torchvision.models, name)()
    kind = getattr(torch, dtype)
    model = model.eval().cuda().to(kind).to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=kind).contiguous(
        memory_format=torch.channels_last
    )

    def median(call: Callable[[], Any]) -> float:
        events = []
        for _ in range(120):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        return float(statistics.median(a.elapsed_time(b) for a, b in events[20:])) * 1e3

    times = {}
    with torch.inference_mode():
        times["eager"] = median(lambda: model(x))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x)
        times["graph"] = median(graph.replay)
        compiled = torch.compile(model, mode="max-autotune")
        times["compiled"] = median(lambda: compiled(x))
    return times


def main() -> None:
    """Run all steps on all cases of this part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--milliseconds", type=int, default=500)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    runs = Runs(args.minutes, args.out.resolve())
    folder = HERE / "cases"
    existing = list(folder.iterdir()) if folder.is_dir() else []
    cases = sorted(existing, key=lambda path: (path / "run_vectors").stat().st_size)
    for case in cases:
        runs.step("golden", case.name, lambda case=case: golden(runs, case, args.repeat))  # type: ignore[misc]
    for case in cases[:5]:
        for tool in SANITIZERS:
            runs.step("sanitize", f"{case.name} {tool}", lambda c=case, t=tool: sanitize(runs, c, t))  # type: ignore[misc]
    folder = HERE / "candidates"
    for case in sorted(folder.iterdir()) if folder.is_dir() else []:
        runs.step("candidates", case.name, lambda case=case: candidates(runs, case))  # type: ignore[misc]
    for case in cases:
        runs.step("time", case.name, lambda case=case: timed(runs, case, args.milliseconds))  # type: ignore[misc]
    for case in cases:
        runs.step("converted", case.name, lambda case=case: converted(runs, case, args.milliseconds))  # type: ignore[misc]
    models = {json.loads((case / "case.json").read_text(encoding="utf-8"))["model"] for case in cases}
    for name, batch in peers(models):
        for dtype in ("float16", "bfloat16"):
            words = f"{name}@{batch} {dtype}"
            runs.step("torch", words, lambda n=name, d=dtype, b=batch: torch_times(n, d, b))  # type: ignore[misc]
    for case in cases:
        runs.step("ncu", case.name, lambda case=case: ncu(runs, case, case.name))  # type: ignore[misc]
    failed = [
        name
        for name, found in runs.results.get("golden", {}).items()
        if found.get("failed") or found["faults"]
    ]
    print(
        f"golden vectors: {len(cases) - len(failed)} of {len(cases)} bundles are right"
        + "".join(f", not {f}" for f in failed)
    )


if __name__ == "__main__":
    main()
