"""Times of candidates on a GPU: runs of the measuring program, and the evaluation of its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.byoc.gpu_choices import OWN
from kiln.device.check.runners import Runner
from kiln.errors import KilnError
from kiln.tune.gpu.folder import LIST, CandidateFolder
from kiln.tune.gpu.subjects import GpuSubject

MILLISECONDS = 8.0  # of the GPU for one candidate
COLD = (4 << 20, 192 << 20)  # bounds in bytes of the memory from which weights are read in turn
WORTH = 0.97  # a backend is preferred if it takes at most this part of the time of Kiln's own kernels
_NO_GPU, _BROKEN = 2, 4  # exit statuses of the program
_TIMEOUT = 1800.0


@dataclass(frozen=True)
class GpuTimes:
    """The program's output: the GPU, its architecture such as 90, and nanoseconds by candidate.

    `failed`: by candidate, the driver's number and text.
    """

    gpu: str
    arch: int
    nanoseconds: Mapping[str, float]
    failed: Mapping[str, str]


def run_candidates(folder: CandidateFolder, runner: Runner, cold: int) -> str | None:
    """The lines that the program prints on `runner`; None if there is no GPU or no driver.

    After an error that ends the use of the GPU in one process, another process continues with the next
    candidate. Raises KilnError where the program fails.
    """
    send = {LIST: folder.path / LIST, **{name: folder.path / name for name in folder.files}}
    output, first = "", 0
    while True:
        words = [LIST, str(MILLISECONDS), str(cold), str(first)]
        done = runner.run(folder.program, words, send=send, fetch={}, timeout=_TIMEOUT)
        output += done.stdout
        if done.status == _NO_GPU:
            return None
        if done.status == 0:
            return output
        broken = [line for line in done.stdout.splitlines() if line.startswith("broken\t")]
        if done.status != _BROKEN or not broken or int(broken[-1].split("\t")[1]) <= first:
            reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
            raise KilnError(f"tune: candidates cannot be timed on {runner.description}: {reason}")
        first = int(broken[-1].split("\t")[1])


def read(text: str, where: str, digest: str) -> GpuTimes:
    """The times in the program's lines. `where`: for messages; `digest`: of the list of candidates.

    Raises KilnError for lines of no known kind, and for times of another list.
    """
    gpu, arch, times, failed = "", 0, dict[str, float](), dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        match line.split("\t"):
            case ["list", list_digest]:
                if list_digest != digest:
                    raise KilnError(
                        f"{where}: line {number}: times of the candidates {list_digest}, here are {digest}: "
                        "time these, or remove the file"
                    )
            case ["gpu", name, version] if version.isdigit():
                if gpu and name != gpu:
                    raise KilnError(f"{where}: line {number}: times of two GPUs, {gpu} and {name}")
                gpu, arch = name, int(version)
            case ["time", name, time, _] if time.isdigit():
                times[name] = max(1.0, float(time))
            case ["failed", name, *reason]:
                failed[name] = " ".join(reason)
            case ["broken", _]:
                pass
            case _:
                raise KilnError(f"{where}: line {number} is not one of time_gpu: {line[:80]!r}")
    if not gpu:
        raise KilnError(f"{where}: no line names the GPU")
    return GpuTimes(gpu, arch, times, failed)


def entries_of(subjects: Sequence[GpuSubject], times: GpuTimes) -> dict[str, dict[str, Any]]:
    """Entries of kiln.byoc.gpu_choices for subgraphs that Kiln's own kernels and a backend were timed on."""
    entries: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(subject.key for subject in subjects):
        best: dict[str, tuple[float, GpuSubject]] = {}
        for subject in subjects:
            nanoseconds = times.nanoseconds.get(subject.name)
            if subject.key != key or nanoseconds is None:
                continue
            if subject.backend not in best or nanoseconds < best[subject.backend][0]:
                best[subject.backend] = nanoseconds, subject
        if OWN not in best or len(best) < 2:
            continue
        fastest = min(best, key=lambda name: best[name][0])
        chosen = fastest if best[fastest][0] <= WORTH * best[OWN][0] else OWN
        entries[key] = {
            "backend": chosen,
            "tiles": {name: list(subject.tile) for name, (_, subject) in best.items() if subject.tile},
            "us": {name: round(nanoseconds / 1e3, 2) for name, (nanoseconds, _) in best.items()},
        }
        if best[OWN][1].product:
            entries[key]["product"] = best[OWN][1].product
    return entries
