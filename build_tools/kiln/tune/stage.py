"""tune: finds the fastest candidate for each kernel of a model, and records it for the measured CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kiln.config import Target, cpus, read_target
from kiln.config.host import read_cpuinfo
from kiln.config.records import read
from kiln.config.slice_records import LowerConfig
from kiln.device.check import host_cpu
from kiln.device.check.runners import open_runner
from kiln.device.check.runners.remote import RemoteRunner, remote_runner
from kiln.device.deploy.registry import read_device
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.lower import target_check
from kiln.lower.cases import cases_of
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.target_trial import check_together
from kiln.params import store
from kiln.stages.use import TuneStage
from kiln.tir.tuning_records import FOLDER, MEASURED, TuningRecord, is_key
from kiln.tune.database import merge
from kiln.tune.gpu import stage as gpu_stage
from kiln.tune.measure import Bench, TimedSubject
from kiln.tune.tuner import Tuner

COLD = (4 << 20, 64 << 20)  # bounds in bytes of the memory from which weights are read in turn


def run(args: TuneStage) -> None:
    """Time candidates for all kernels, merge the tuning records, print a summary, and write --out."""
    config = read(LowerConfig, args.config)
    target = read_target(args.target)
    target_check.check(target)
    target = target.for_variant(target.base)  # variants=NAME makes another one the target's own
    check_together(target)
    if target.cuda is not None:
        gpu_stage.run(args, config, target)
        return
    threads = config.threads_on(target)
    keys, weights = keys_of(args.sources, config.name, target, threads)
    cold = min(max(weights, COLD[0]), COLD[1])
    with _bench(target, args.device, config.name, cold) as (bench, cpu):
        print(f"{config.name} on {target.name} ({bench.runner.description}): CPU {cpu}", flush=True)
        if not keys:
            print("no kernels with a choice: float32 convolutions and dense layers of known sizes have one")
        tuner = Tuner(bench, target, threads, packed=len(args.sources) == 1)
        entries = {key: _entry(best) for key, best in tuner.tuned(keys).items()}
    path = merge(args.database or FOLDER, cpu, target, entries)
    write_json(args.out, {"cpu": cpu, "runner": bench.runner.description, "kernels": entries})
    _print_summary(path, cpu, target, entries)


def _entry(best: TimedSubject) -> dict[str, Any]:
    return {**best.subject.choice.describe(), "us": round(best.us, 1), "ratio": round(best.ratio, 3)}


def _print_summary(path: Path, cpu: str, target: Target, entries: dict[str, dict[str, Any]]) -> None:
    better = {key: entry for key, entry in entries.items() if set(entry) - set(MEASURED)}
    print(
        f"{len(entries)} kernels, {len(better)} faster than the heuristics"
        + (f"; kept in {path}" if better else "")
    )
    used_cpu = target.tuned_for or target.cpu
    if better and used_cpu != cpu:
        print(
            f"target '{target.name}' reads records measured on '{used_cpu}': "
            f"`tuned_for: {cpu}` in a target of your own makes builds for this CPU use it"
        )


@contextmanager
def _bench(target: Target, device: Path | None, model: str, cold: int) -> Iterator[tuple[Bench, str]]:
    """Yield the bench, on the device if given, else on this machine, and LLVM's name of the CPU.

    Raises KilnError where neither can run the target's code: an emulator's times say nothing about the
    target.
    """
    if device is not None:
        with remote_runner(read_device(device), target, model) as runner:
            if not isinstance(runner, RemoteRunner):
                raise KilnError(f"{runner.description}: it has no shell, and its kernels cannot be timed")
            yield Bench(target, runner, cold), _measured_cpu(runner.cores, target, runner.description)
        return
    reason = host_cpu.obstacle(target)
    if reason is not None:
        raise KilnError(
            f"target '{target.name}' cannot be tuned here: {reason}; device=NAME measures on a device"
        )
    cpu = _measured_cpu(cpus.names(read_cpuinfo()), target, "this machine")
    yield Bench(target, open_runner("local", target), cold), cpu


def _measured_cpu(names: Sequence[str], target: Target, where: str) -> str:
    """LLVM's name of the CPU that is measured; `names`: of the CPUs in the machine `where`.

    Raises KilnError if the machine has several kinds of cores, or none that is known, and the target does not
    name the measured one.
    """
    configured = target.tuned_for or target.cpu
    if len(names) == 1 or configured in names:
        return configured if configured in names else names[0]
    kinds = f"has several kinds of cores ({', '.join(names)})" if names else "does not report its CPU"
    raise KilnError(
        f"{where} {kinds}: set the CPU that the measurements are for in the target (key 'tuned_for', now "
        f"'{configured}')"
    )


class _Recorder(dict[str, TuningRecord]):
    """An empty set of tuning records that notes the keys that `lower` looks up."""

    def __init__(self) -> None:
        self.looked_up: dict[str, None] = {}

    def get(self, key: str, default: Any = None) -> Any:
        self.looked_up[key] = None
        return default


def keys_of(sources: Iterable[Path], model: str, target: Target, threads: str) -> tuple[list[str], int]:
    """Keys of the model's kernels that can be tuned, which need static sizes, and bytes of its parameters.

    The bytes are the maximum over the buckets of the bytes that one run reads.
    """
    recorder, weights = _Recorder(), 0
    for source in sources:
        for case in cases_of(store.load(source)):
            steps = lower(case.module, Lowering(model, target, threads, winograd="auto", choices=recorder))
            weights = max(weights, sum(value.nbytes for value in steps.params.values()))
    return [key for key in recorder.looked_up if is_key(key)], weights
