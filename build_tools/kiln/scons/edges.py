"""Buckets that the build chooses itself: known before SCons plans the build, for they decide what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kiln.config.dims import Bucket
from kiln.scons.unit import Unit


def chosen(unit: Unit) -> Mapping[str, Sequence[Bucket]]:
    """The buckets of the dimensions that say `auto`."""
    return {}
