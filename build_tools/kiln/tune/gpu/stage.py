"""tune on a GPU: times candidates for each subgraph here, on a device, or on a machine without Kiln."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.byoc import gpu_choices
from kiln.byoc.backend import Backend
from kiln.byoc.registry import bundled_backends
from kiln.config import Target
from kiln.config.slice_records import LowerConfig
from kiln.device.check import host_cpu
from kiln.device.check.runners import open_runner
from kiln.device.check.runners.remote import RemoteRunner, remote_runner
from kiln.device.deploy.registry import read_device
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.paths import cache_dir
from kiln.stages.use import TuneStage
from kiln.tune.gpu import times as gpu_times
from kiln.tune.gpu.folder import LIST, PROGRAM, TIMES, CandidateFolder, write
from kiln.tune.gpu.subjects import GpuSubject, subjects_of


def run(args: TuneStage, config: LowerConfig, target: Target) -> None:
    """Build the candidates, time them or read times.tsv, merge the choices, and write --out."""
    assert target.cuda is not None
    threads = config.threads_on(target)
    backends: list[Backend] = bundled_backends(target)
    subjects, subgraphs = subjects_of(args.sources, backends, target, threads, config)
    if not subjects:
        print("no subgraphs with a choice: products, convolutions and attention have one")
        write_json(args.out, {"gpu": None, "kernels": {}})
        return
    folder = write(subjects, target, args.out.parent / "candidates", cache_dir())
    print(
        f"{config.name} on {target.name}: {len(subjects)} candidates for {len(subgraphs)} subgraphs",
        flush=True,
    )
    text = _times_text(folder, args.device, target, config.name, _cold_bytes(subjects))
    if text is None:
        print(
            f"no GPU here. On a machine with one, in a copy of {folder.path}:\n"
            f"    ./{PROGRAM} {LIST} {gpu_times.MILLISECONDS:.0f} {_cold_bytes(subjects)} > {TIMES}\n"
            f"Then put {TIMES} into {folder.path}, and run this again."
        )
        write_json(args.out, {"gpu": None, "kernels": {}})
        return
    times = gpu_times.read(text, str(folder.path / TIMES), folder.digest)
    for name, reason in times.failed.items():
        print(f"{name} failed: {reason}")
    entries = gpu_times.entries_of(subjects, times)
    arch = f"sm_{times.arch}"
    path = gpu_choices.merge(args.database, times.gpu, arch, config.precision, entries)
    write_json(args.out, {"gpu": times.gpu, "arch": arch, "kernels": entries})
    _print_result(entries, path, times.gpu, arch, target)


def _print_result(entries: Mapping[str, Any], path: Path, gpu: str, arch: str, target: Target) -> None:
    assert target.cuda is not None
    for key, entry in entries.items():
        us = ", ".join(f"{name} {microseconds}" for name, microseconds in entry["us"].items())
        print(f"{key}: {entry['backend']} ({us} us)")
    print(f"{len(entries)} subgraphs measured on {gpu}; kept in {path}")
    file_name = gpu_choices.file_name_of_gpu(gpu)
    if target.cuda.tuned_for != file_name or target.cuda.newest != arch:
        print(
            f"target '{target.name}' reads records measured on '{target.cuda.tuned_for}', "
            f"{target.cuda.newest}: `cuda: {{archs: [{arch}], tuned_for: {file_name}}}` in a target of your "
            "own makes builds use it"
        )


def _cold_bytes(subjects: Sequence[GpuSubject]) -> int:
    """Bytes of memory for copies of weights, read in turn: all subgraphs' weights, within gpu_times.COLD."""
    weights = {
        subject.key: sum(value.nbytes for value in subject.steps.params.values()) for subject in subjects
    }
    return min(max(sum(weights.values()), gpu_times.COLD[0]), gpu_times.COLD[1])


def _times_text(
    folder: CandidateFolder, device: Path | None, target: Target, model: str, cold: int
) -> str | None:
    """The lines of times.tsv if it exists, else the lines of a run on the device or on this machine.

    None: there is no device, and this machine has no GPU.
    """
    times_file = folder.path / TIMES
    if times_file.is_file():
        return times_file.read_text(encoding="utf-8", errors="replace")
    if device is None and host_cpu.obstacle(target) is not None:
        return None
    if device is None:
        return gpu_times.run_candidates(folder, open_runner("local", target), cold)
    with remote_runner(read_device(device), target, model) as runner:
        if not isinstance(runner, RemoteRunner):
            raise KilnError(f"{runner.description}: it has no shell, and kernels cannot be timed there")
        text = gpu_times.run_candidates(folder, runner, cold)
        if text is None:
            raise KilnError(f"{runner.description}: no GPU, or no driver of one")
        return text
