"""Flags that several stages share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kiln.stage import Input, Slice, Unhashed

Target = Annotated[Path, Input("target.json")]
Device = Annotated[Path | None, Input("device.json: run there")]
Plan = Annotated[Path, Input("plan.json")]
Buckets = Annotated[Path | None, Input("buckets.json; a model without dimensions needs none")]
Sources = Annotated[
    tuple[Path, ...],
    Input("input folder of the lower stage; once for each bucket, in the order of buckets.json", "--in"),
]
LoweredModules = Annotated[
    tuple[Path, ...],
    Input("folder of the lower stage; once for each bucket, in the order of buckets.json", "--in"),
]
Libraries = Annotated[tuple[Path, ...], Input("folder of the library stage", "--library")]
Called = Annotated[str | None, Unhashed("how errors call the model file; by its path when left out")]
GraphFiles = ("module.json", "params.safetensors", "interface.json")

_SLICE = "slice of the model's configuration, JSON"
IMPORT_KEYS = ("inputs", "outputs", "dims", "bounds", "state")
ImportSlice = Annotated[Path, Slice(_SLICE, name="import", keys=IMPORT_KEYS)]
_LOWER_KEYS = ("threads", "winograd", "precision", "checks", "quantised", "patches", "budget")
LowerSlice = Annotated[Path, Slice(_SLICE, name="lower", keys=_LOWER_KEYS)]
ToleranceSlice = Slice("limits of the errors of outputs, JSON", name="tolerance", keys=("tolerance",))


def config(name: str, *keys: str) -> Slice:
    """The flag --config for a slice that only one stage reads."""
    return Slice(_SLICE, name=name, keys=keys)
