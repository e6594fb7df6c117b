"""The key `byoc:` of models and targets: external libraries that may compute subgraphs of a model."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kiln.config.check import Section

_WORD = re.compile(r"[a-z][a-z0-9_]*")


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
        for key in sorted({"take", "leave"} & self.model_fields_set):
            if not self.backends:
                raise ValueError(f"{key}: no subgraph is for a library, as 'backends' is empty: name some")
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
