"""byoc.json: the libraries that may compute a model's subgraphs, and after they were timed, which one."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from kiln.config.byoc import Byoc
from kiln.config.records import Record


class LibraryTime(Record):
    """Microseconds of a subgraph by Kiln's kernels and by a library, and the library's ratio to Kiln's.

    `worth`: whether the library is fast enough to be used.
    """

    kiln: float
    us: float
    ratio: float
    worth: bool


class TimedSubgraph(Record):
    """A subgraph that occurs `count` times in a model, and what computes it: a backend, or `kiln`.

    `part`: its key. `times`: by backend that supports it; None where it was not timed. `why`: for the user.
    """

    part: str
    count: int
    times: dict[str, LibraryTime | None]
    chosen: str
    why: str


class LibraryChoices(Record):
    """The content of byoc.json.

    `byoc`: the section of the model or of the target. `backends`: those that may be used. `absent`: with
    `byoc=auto`, why others may not, by name. `globs_of_model`: whether each glob has to match a subgraph.

    Once `byoc=auto` has chosen: `chosen`: a backend by the key of each subgraph that has one; `measured_on`:
    the processor; `parts`: all subgraphs; `summary`: a line for the user.
    """

    OMITTED: ClassVar[frozenset[str]] = frozenset({"absent"})

    byoc: Byoc
    backends: list[str]
    absent: dict[str, str] = Field(default_factory=dict)
    globs_of_model: bool = False
    chosen: dict[str, str] | None = None
    measured_on: str | None = None
    parts: list[TimedSubgraph] = Field(default_factory=list)
    summary: str = ""
