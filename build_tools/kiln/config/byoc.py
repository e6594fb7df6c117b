"""Which external libraries may compute parts of a model: the key `byoc:` of models and targets."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kiln.config.check import Section

_WORD = re.compile(r"[a-z][a-z0-9_]*")


class Byoc(Section):
    """Backends by name, the first one that takes a subgraph first; none: everything is Kiln's own.

    `auto` among them: for each subgraph the faster one of Kiln's own kernels and the other backends that are
    named, or every one that can be had for the target.
    """

    backends: list[str] = Field(
        default_factory=list, description="backends, in the order in which they are asked"
    )
    take: list[str] = Field(
        default_factory=lambda: ["*"], description="globs; only subgraphs whose name one of them matches"
    )
    leave: list[str] = Field(default_factory=list, description="globs; subgraphs that stay Kiln's own")

    @model_validator(mode="after")
    def _names(self) -> Byoc:
        for name in self.backends:
            if not _WORD.fullmatch(name) or name == "none":
                raise ValueError(f"none, auto, or names of backends with commas expected, got '{name}'")
        return self

    @property
    def wanted(self) -> bool:
        """Whether any backend is asked."""
        return bool(self.backends)

    @property
    def auto(self) -> bool:
        """Whether times decide."""
        return "auto" in self.backends

    @property
    def named(self) -> list[str]:
        """The backends, without the word that is none."""
        return [name for name in self.backends if name != "auto"]


def read(value: Any) -> Any:
    """`none`, `auto`, `name,name` or a list of those words as the section that they stand for."""
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
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "backends": {"type": "array", "items": {"type": "string"}},
                "take": {"type": "array", "items": {"type": "string"}},
                "leave": {"type": "array", "items": {"type": "string"}},
            },
        },
        {"type": "null"},
    ]
}

ByocKey = Annotated[Byoc | None, BeforeValidator(read), WithJsonSchema(_SCHEMA)]
