"""A stage as a node of SCons's graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.stage import Stage


@dataclass(frozen=True)
class StageNode:
    """A stage with the values of its flags, as SCons runs it.

    `inputs` are SCons nodes, `outputs` the paths of the output files. With `listing`, the stage chooses the
    files in `folder`, and the output known to SCons is a list of them, at the path `listing`. `markers` are
    empty files, written when the stage has ended. `dry_run_text` returns the text that `scons -n` prints.
    """

    stage: Stage
    subject: str
    inputs: Sequence[Any]
    outputs: Sequence[str]
    folder: str | None
    listing: str | None
    markers: Sequence[str]
    dry_run_text: Callable[[], str] | None

    @property
    def name(self) -> str:
        """The name of the stage."""
        return self.stage.spec.name
