"""`./kiln bench variants`: the variants of a target, its base and `host`: bytes, golden vectors, speed.

Each model is built and tested for each target, so that every variant has run the golden vectors where
something can run it. Then one vector runs with each variant: instructions are counted in QEMU (plugin.py),
times are taken where this machine can run the variant. Parameters are compared with those of a bundle of
the base alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln.config import Target, load_target
from kiln.device.bundle import Bundle, open_bundle
from kiln.device.check import host_cpu
from kiln.device.check.runners import Runner, qemu_user, runner_for
from kiln.device.check.runners.local import LocalRunner, emulator_of, too_old
from kiln.device.vector_files import encode
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json
from kiln.scratch import scratch_folder

from benchmarks.contenders import Folders
from benchmarks.machine import description
from benchmarks.plugin import make_plugin
from benchmarks.tables import markdown
from benchmarks.workers import ROOT, say

MODELS = ("resnet", "silero_vad")
TARGETS = ("x86_64", "x86_64_v2", "aarch64", "riscv64")
_PROGRAM = Path(__file__).resolve().parent / "programs" / "variants.c"
_TIMEOUT = 600.0  # seconds
_RUNS, _OPENS = 40, 200  # timed; counted are 3 less 1
_HEADER = (
    "target", "model", "variant", "code", "params", "of the base alone", "golden vectors", "M instructions",
    "of the base's", "ms", "of the base's", "of host's", "kiln_open",
)  # fmt: skip


@dataclass
class Row:
    """One variant of one model on one target; sizes in bytes. None: not known here.

    `opened`: the time of one kiln_open, which queries the processor and chooses a variant, with its unit.
    """

    target: str
    model: str
    variant: str
    code: int
    params: int
    params_alone: int
    golden: str
    instructions: int | None = None
    ms: float | None = None
    opened: str = "–"

    def cells(self, base: Row, host: Row | None) -> list[str]:
        """A row of the table, compared with the target's `base`, and with `host` if this machine runs it."""
        sizes = [f"{size:,}" for size in (self.code, self.params, self.params_alone)]
        return [
            self.target, self.model, self.variant, *sizes,
            self.golden, "–" if self.instructions is None else f"{self.instructions / 1e6:.2f}",
            _ratio(self.instructions, base.instructions), "–" if self.ms is None else f"{self.ms:.3f}",
            _ratio(self.ms, base.ms), _ratio(self.ms, None if host is None else host.ms), self.opened,
        ]  # fmt: skip


def _ratio(value: float | None, other: float | None) -> str:
    return f"{value / other:.2f}" if value is not None and other else "–"


@dataclass
class Built:
    """A bundle, and the records of its build and test."""

    bundle: Bundle
    target: Target
    linked: dict[str, Any]
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)  # by variant

    @property
    def params(self) -> int:
        """Bytes of the parameters."""
        return int(read_json(self.bundle.folder / "manifest.json")["params"]["bytes"])

    def code(self, variant: str) -> int:
        """Bytes of the kernels that a variant calls; the target has that variant alone if none is listed."""
        bytes_of_variant = {one["name"]: one["code_bytes"] for one in self.linked.get("variants", [])}
        return int(bytes_of_variant.get(variant, self.linked["code"]["kernels"]))

    def golden(self, variant: str) -> str:
        """The number of golden vectors that the variant has run, or why it has run none."""
        result = self.tests.get(variant, {"not_run": "not tested"})
        return f"{len(result['vectors'])} right" if "not_run" not in result else str(result["not_run"])


def run(args: argparse.Namespace, models: Sequence[str], folders: Folders, out: Path) -> None:
    """Measure the models on the targets; print the table and write variants.md. Raises KilnError."""
    for name in args.target:
        if load_target(name).deployment != "hosted":
            raise KilnError(f"--target '{name}': a target with an operating system expected, as {TARGETS[0]}")
    rows = []
    for model in models:
        host = _of_host(model, folders, args.no_build)
        for name in args.target:
            results = _of_target(model, name, folders, args.no_build)
            rows += [row.cells(results[0], host if results[0].ms is not None else None) for row in results]
        rows += [host.cells(host, host)] if host is not None else []
    text = (
        f"{description(args.cpus)}. One run of the first golden vector on one thread: instructions in QEMU, "
        f"or the least time of {_RUNS} on this machine; kiln_open queries the processor and chooses the "
        "variant.\n\n" + markdown(_HEADER, rows)
    )
    atomic_write(out / "variants.md", text)
    print(text, end="")
    say(f"written to {out / 'variants.md'}")


def _of_target(model: str, name: str, folders: Folders, as_it_is: bool) -> list[Row]:
    """The rows of all variants of the bundle, the base first."""
    built = _built(model, name, folders.build, [] if as_it_is else ["test"])
    alone = built.params
    if built.target.variants:
        work = folders.work / "variants"
        work.mkdir(parents=True, exist_ok=True)
        alone = _built(
            model, name, work / "build", [] if as_it_is else [f"variants={built.target.base}"]
        ).params
    names = built.bundle.variants(built.target)
    say(f"{model} on {name}: {', '.join(names)}")
    program = built.bundle.link_program(built.target, folders.work / "programs" / f"{name}-{model}", _PROGRAM)
    rows = []
    for variant in names:
        row = Row(name, model, variant, built.code(variant), built.params, alone, built.golden(variant))
        _measure(row, built, program, built.target.for_variant(variant), folders)
        rows.append(row)
    return rows


def _of_host(model: str, folders: Folders, as_it_is: bool) -> Row | None:
    """The row of the target `host`; None where it cannot be built, which a line says."""
    try:
        return _of_target(model, "host", folders, as_it_is)[0]
    except KilnError as error:
        say(f"{model} on host: left out: {error}")
        return None


def _measure(row: Row, built: Built, program: Path, own: Target, folders: Folders) -> None:
    """Fill in what can be measured of one variant: times on this machine, else instructions in QEMU."""
    forced = ["variant", row.variant] if built.target.variants else []
    if host_cpu.obstacle(own) is None:
        found = _run(
            built, runner_for(own), program, [*forced, "inputs.bin", "params.bin", str(_RUNS), str(_OPENS)]
        )
        row.ms, row.opened = found["run"] / 1e6, f"{found['open'] / 1e3:.1f} µs"
        return
    if own.emulator is None or own.system.runner != "qemu_user" or too_old(own.emulator) is not None:
        return
    if not _has_plugins(own):
        say(f"{row.model} on {row.target}, variant {row.variant}: not counted: this QEMU has no plugins")
        return
    counts = {
        (runs, opens): _count(
            built, own, program, [*forced, "inputs.bin", "params.bin", str(runs), str(opens)], folders
        )
        for runs, opens in ((1, 0), (3, 0), (1, 100))
    }
    row.instructions = (counts[3, 0] - counts[1, 0]) // 2
    row.opened = f"{(counts[1, 100] - counts[1, 0]) // 100:,} instructions"


def _has_plugins(own: Target) -> bool:
    """Whether the variant's emulator can count: Debian's static builds of QEMU cannot."""
    shown = subprocess.run([emulator_of(own)[1], "-h"], check=False, capture_output=True, text=True).stdout
    return "-plugin" in shown


def _count(built: Built, own: Target, program: Path, words: Sequence[str], folders: Folders) -> int:
    """Instructions of the whole program in the variant's emulator."""
    emulator, path = emulator_of(own)
    plugin, _ = make_plugin(str(path), folders.work)
    with scratch_folder("count") as folder:
        result = Path(folder, "count.txt")
        command = [path, "-plugin", f"{plugin},out={result}", *emulator.args, *qemu_user.sysroot(own)]
        _run(built, LocalRunner(emulator.command, command, emulator.env), program, words)
        return int(result.read_text())


def _run(built: Built, runner: Runner, program: Path, words: Sequence[str]) -> dict[str, int]:
    """Run programs/variants.c; the nanoseconds that it prints, by name. Raises KilnError where it fails."""
    with scratch_folder("variants") as folder:
        inputs = Path(folder, "inputs")
        inputs.write_bytes(encode([vector.inputs for vector in built.bundle.vectors()]))
        send = {"inputs.bin": inputs, **built.bundle.library_files()}
        if built.bundle.params.is_file():
            send["params.bin"] = built.bundle.params
        done = runner.run(program, words, send=send, fetch={}, timeout=_TIMEOUT)
    if done.status != 0:
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise KilnError(f"{built.bundle.folder}: {' '.join(words[:2])}: {reason}")
    return {name: int(value) for name, value in (line.split("\t") for line in done.stdout.splitlines())}


def _built(model: str, name: str, build: Path, goals: Sequence[str]) -> Built:
    """Build the model with `goals`, unless there are none, and read its records. Raises KilnError."""
    if goals:
        command = [sys.executable, "-m", "SCons", "-Q", "-f", str(ROOT / "SConstruct"), f"target={name}"]
        done = subprocess.run(
            [*command, f"model={model}", *goals],
            check=False,
            capture_output=True,
            text=True,
            cwd=build.parent,
        )
        if done.returncode != 0:
            lines = [
                line
                for line in (done.stdout + done.stderr).splitlines()
                if "error" in line or "FAILED" in line
            ]
            raise KilnError(f"{model} on {name}: {(lines or ['the build failed'])[0]}")
    stages, bundle = build / ".stages" / name / model, open_bundle(build / name / model)
    linked = read_json(bundle.folder / "manifest.json")["linked"]
    built = Built(bundle, load_target(name), linked)
    if (stages / "test.json").is_file():
        first = read_json(stages / "test.json")
        tests = [first, *first.get("variants", [])]
        built.tests = {entry.get("variant", built.target.base): entry for entry in tests}
    return built
