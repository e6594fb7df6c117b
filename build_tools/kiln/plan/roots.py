"""Tensors that share memory: aliases of one tensor."""

from __future__ import annotations

from collections.abc import Mapping

from kiln.lower.schema import TensorRecord


def root_of(tensors: Mapping[str, TensorRecord], name: str) -> str:
    """Name of the tensor that owns the memory of tensor `name`, which may be an alias."""
    while (alias := tensors[name].alias) is not None:
        name = alias
    return name
