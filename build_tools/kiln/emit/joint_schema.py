"""joint.json, as records: what several models in one library share, in bytes and kernels."""

from __future__ import annotations

from typing import Literal

from kiln.config.records import Record
from kiln.plan.parameter_records import Count


class JointFigures(Record):
    """The content of joint.json in the folder of a joint library.

    Keys that end in `_alone` have the figures of each model's own library, by the model's name. Those of
    arenas are by the arena's name first, which is empty where there is one arena.
    """

    format: Literal[1] = 1
    name: str
    target: str
    threads: str
    models: list[str]
    params_bytes: Count
    params_bytes_alone: dict[str, Count]
    kernels: Count
    kernels_alone: dict[str, Count]
    arena_bytes: dict[str, Count]
    arena_bytes_alone: dict[str, dict[str, Count]]


class JointSizes(JointFigures):
    """The content of joint.json as a result of the build: with bytes of flash in a linked program."""

    flash_bytes: Count
    flash_bytes_alone: dict[str, Count]
