"""The key `byoc:` of models and targets: external libraries that may compute subgraphs of a model."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kiln.config.check import Section, first_twice, nearest
from kiln.errors import KilnError

_WORD = re.compile(r"[a-z][a-z0-9_]*")
_MOST_NAMED = 8  # subgraphs in an error


class Byoc(Section):
    """Names of backends in order of priority; an empty list: Kiln's own kernels compute everything.

    With `auto` in the list, each subgraph gets the fastest of Kiln's own kernels and the backends: the other
    backends in the list or, if there are none, all that are available for the target.
    """

    backends: list[str] = Field(
        default_factory=list,
        description="backends in order of priority; auto: the fastest of them for each subgraph",
    )
    take: list[str] = Field(
        default_factory=lambda: ["*"],
        description="globs; libraries compute only subgraphs whose name matches one of them; left out: all",
    )
    leave: list[str] = Field(
        default_factory=list, description="globs; matching subgraphs are computed by Kiln's own kernels"
    )

    @model_validator(mode="after")
    def _names(self) -> Byoc:
        for name in self.backends:
            if not _WORD.fullmatch(name) or name == "none":
                raise ValueError(f"none, auto, or names of backends with commas expected, got '{name}'")
        for key, _ in self._globs():
            if not self.backends:
                raise ValueError(f"{key}: no subgraph is for a library, as 'backends' is empty: name some")
        for key in ("backends", "take", "leave"):
            twice = first_twice(getattr(self, key))
            if twice is not None:
                raise ValueError(f"{key}: '{twice}' is named twice")
        return self

    @property
    def is_used(self) -> bool:
        """Whether the list of backends is not empty."""
        return bool(self.backends)

    @property
    def auto(self) -> bool:
        """Whether measured times choose the backend of each subgraph."""
        return "auto" in self.backends

    @property
    def named(self) -> list[str]:
        """The names of backends, without the word `auto`."""
        return [name for name in self.backends if name != "auto"]

    def check_globs(
        self,
        model: str,
        target: str,
        backends: Collection[str],
        usable: Collection[str],
        subgraphs: Collection[str],
    ) -> None:
        """Raise KilnError for a glob of the model's file that matches none of `subgraphs`.

        `subgraphs`: `backend name` of all subgraphs, in any bucket, that the backends `usable` support. With
        `auto`, a glob may also name one of `backends` that is not usable: it is meant for other targets.
        """
        for key, glob in self._globs():
            names_absent = self.auto and glob.split(" ", 1)[0] in set(backends) - set(usable)
            if names_absent or any(_matches_any([glob], subgraph) for subgraph in subgraphs):
                continue
            raise KilnError(
                f"model '{model}': byoc.{key}: '{glob}' matches no subgraph that a library can compute on "
                f"target '{target}'{_named(glob, subgraphs)}: correct or remove it"
            )

    def _globs(self) -> Iterator[tuple[str, str]]:
        """The key and text of each glob, except the glob that matches everything."""
        for key in ("take", "leave"):
            yield from ((key, glob) for glob in getattr(self, key) if (key, glob) != ("take", "*"))


def may_compute(byoc: Byoc, subgraph: str) -> bool:
    """Whether the globs give a subgraph to a library. `subgraph`: `backend name`."""
    return _matches_any(byoc.take, subgraph) and not _matches_any(byoc.leave, subgraph)


def _matches_any(globs: list[str], subgraph: str) -> bool:
    """Whether a glob matches `backend name` of a subgraph, or the name alone."""
    return any(
        fnmatch.fnmatchcase(text, glob) for glob in globs for text in (subgraph, subgraph.split(" ", 1)[1])
    )


def _named(glob: str, subgraphs: Collection[str]) -> str:
    """The model's subgraphs, as text for the error about a glob that matches none of them."""
    names = list(dict.fromkeys(subgraph.split(" ", 1)[1] for subgraph in sorted(subgraphs)))
    if not names:
        return "; the backends support none of the model's subgraphs"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    listed = ", ".join(f"'{name}'" for name in names[:_MOST_NAMED])
    return f"{nearest(glob, names)}; there are: {listed}{more}"


def read(value: Any) -> Any:
    """Expand the short forms `none`, `auto`, `name,name` or a list of such words to a section.

    A value of any other form is returned unchanged.
    """
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        return value
    if value == ["none"]:
        return {}
    return {"backends": value}


_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        Byoc.model_json_schema(),
        {"type": "null"},
    ]
}

ByocKey = Annotated[Byoc | None, BeforeValidator(read), WithJsonSchema(_SCHEMA)]
