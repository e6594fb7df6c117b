"""The stages of a build, each declared once (see `kiln.stage`), in modules that import no library."""

from __future__ import annotations

from kiln.stage import STAGES as STAGES
from kiln.stage import Slice
from kiln.stages import model, target, use  # noqa: F401 - declares the stages

# The slices of a model's configuration: the keys by the slice's name.
SLICES: dict[str, tuple[str, ...]] = {
    field.kind.name: field.kind.keys
    for stage in STAGES.values()
    for field in stage.fields()
    if isinstance(field.kind, Slice)
}
