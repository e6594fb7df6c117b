"""Folders and names for the stages of one bucket of a model.

A static model has one bucket, whose files are in the model's own folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kiln.config import buckets, canonical_json
from kiln.config.boxes import Box
from kiln.scons.edges import chosen_buckets
from kiln.scons.model_build import ModelBuild
from kiln.scons.stage import text_file


class BucketBuild(NamedTuple):
    """One bucket of a model on a target."""

    unit: ModelBuild
    box: Box

    @property
    def is_static(self) -> bool:
        """Whether the model is static: this is its only bucket."""
        return buckets.is_static(self.box)

    @property
    def of_model(self) -> Path:
        """Folder of the bucket's files that all targets share."""
        return self.unit.of_model if self.is_static else self.unit.of_model / "buckets" / self.box.name

    @property
    def folder(self) -> Path:
        """Folder of the bucket's files for the target."""
        return self.unit.folder if self.is_static else self.unit.folder / "buckets" / self.box.name

    @property
    def model_subject(self) -> str:
        """The name on the console of this bucket's stages that all targets share."""
        return self.unit.name if self.is_static else f"{self.unit.name}[{self.box.name}]"

    @property
    def subject(self) -> str:
        """The name on the console of this bucket's stages for its target."""
        return self.unit.subject if self.is_static else f"{self.unit.subject}[{self.box.name}]"

    @property
    def is_padded(self) -> bool:
        """Whether a dimension is padded to the bucket's size."""
        return bool(self.box.padded)

    @property
    def is_special(self) -> bool:
        """Whether the graph is wrapped or split after it has been simplified."""
        return self.is_padded or bool(self.unit.model.special_cases)

    def bucket_json(self) -> Path | None:
        """bucket.json; None for a static model."""
        if self.is_static:
            return None
        return text_file(self.of_model / "bucket.json", canonical_json(self.box.model_dump()))


def bucket_builds(unit: ModelBuild) -> list[BucketBuild]:
    """The buckets of a model, in the order in which the entry point checks them."""
    return [BucketBuild(unit, box) for box in _boxes(unit)]


def buckets_json(unit: ModelBuild) -> Path | None:
    """buckets.json; None for a static model."""
    boxes = _boxes(unit)
    if buckets.is_static(boxes[0]):
        return None
    text = canonical_json(buckets.listed(unit.model, boxes).model_dump())
    return text_file(unit.of_model / "buckets.json", text)


def _boxes(unit: ModelBuild) -> list[Box]:
    return buckets.boxes(unit.model, chosen_buckets(unit))
