"""Copies of a model that a command makes, timed by `bench` where they are to run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.command_line.build import COPIES
from kiln.command_line.goals import answer_of_goals
from kiln.command_line.model_files import keys_of_copy, write_copy
from kiln.command_line.running import DEFAULT_TARGET
from kiln.config import Model, load_target
from kiln.config.library import identifier
from kiln.device.check import host_cpu
from kiln.errors import KilnError
from kiln.scons.options import BUNDLES


@dataclass(frozen=True)
class RunTimes:
    """Median times of a run on one thread by bucket, in `unit`: ms, or M instr. where an emulator counts."""

    unit: str
    by_bucket: Mapping[str, float]

    @property
    def longest(self) -> float:
        """The time of the slowest bucket."""
        return max(self.by_bucket.values())


@dataclass(frozen=True)
class Timing:
    """The place where copies are timed: the names or files of a target and a device, and other options."""

    target: str | None
    device: str | None
    byoc: str | None = None

    def words(self) -> list[str]:
        """The options of a build."""
        options = {"target": self.target, "device": self.device, "byoc": self.byoc}
        return [f"{name}={value}" for name, value in options.items() if value]


def refuse_emulator(command: str, timing: Timing, instructions: bool = False) -> None:
    """Raise KilnError, for `command`, where programs would run under an emulator on this machine.

    `instructions`: an emulated machine without a system is allowed, which counts them.
    """
    if timing.device is not None:
        return
    target = load_target(timing.target or DEFAULT_TARGET)
    counts = instructions and target.deployment == "freestanding"
    if host_cpu.obstacle(target) is not None and not counts:
        raise KilnError(
            f"{command}: target '{target.name}' does not run on this machine, and times under an emulator "
            "mean nothing: measure on a device with --device NAME"
        )


def bench_of(command: str, configuration: Path, words: list[str]) -> dict[str, Any]:
    """The figures of `bench` for the model in the YAML file `configuration`, see docs/json.md.

    Raises KilnError, for `command`, where the build or a run fails.
    """
    words = [f"model={configuration}", "bench", *words]
    answer = answer_of_goals(words, {BUNDLES: str(COPIES)}, sys.stdout)  # which --quiet discards
    if answer.error is not None:
        raise KilnError(f"{command}: {answer.error.text}")
    figures: dict[str, Any] = answer.results[0].data
    return figures


def time_graph(command: str, model: Model, graph: Path, name: str, folder: Path, timing: Timing) -> RunTimes:
    """The times of the ONNX file `graph` with the settings of `model`; its YAML is `folder`/NAME.yaml."""
    content = keys_of_copy(model, graph, ["cut", "tolerance", "weights"])
    path = write_copy(content, folder, identifier(name))
    figures = bench_of(command, path, timing.words())
    runs = {run["bucket"]: run["median"] for run in figures["runs"] if run["threads"] == 1}
    return RunTimes(figures["time_unit"], runs)
