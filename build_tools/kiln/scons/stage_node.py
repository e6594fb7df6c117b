"""A stage as a node of SCons's graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.stage import Output, Stage


@dataclass(frozen=True)
class StageNode:
    """A stage with the values of its flags, as SCons runs it.

    `inputs` are SCons nodes, `outputs` the paths of the output files. With `listing`, the stage chooses the
    files in `folder`, and the output known to SCons is a list of them, at the path `listing`. `markers` are
    empty files, written when the stage has ended. `dry_run_text` returns the text that `scons -n` prints.
    `damaged` are files that an earlier run wrote and that have changed since.
    """

    stage: Stage
    subject: str
    inputs: Sequence[Any]
    outputs: Sequence[str]
    folder: str | None
    listing: str | None
    markers: Sequence[str]
    dry_run_text: Callable[[], str] | None
    damaged: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of the stage."""
        return self.stage.spec.name

    def unsigned(self) -> list[str]:
        """The paths of all outputs, a folder for its files, except those that are signed in place."""
        folder = [self.folder] if self.folder else []
        signed = [
            str(values[0])
            for field, values in self.stage.values()
            if isinstance(field.kind, Output) and field.kind.signed
        ]
        files = [*self.outputs, *([self.listing] if self.listing else []), *self.markers]
        inside = [path for path in files if self.folder and Path(self.folder) in Path(path).parents]
        return [*folder, *(path for path in files if path not in signed and path not in inside)]
