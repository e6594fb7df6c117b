"""Example inputs whose dynamic axes have a size of 1, of which torch.export makes constants.

Where a module reads such a size, torch.export records that it is 1, and then refuses the dimension. A size of
2 stands for every other size, too: a branch of the module for one size alone becomes a condition of the
program, which torch.export refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

_WIDENED = 2


def widened(torch: ModuleType, inputs: Any, bind: Callable[[Any], Any], shapes: Any) -> Any:
    """`inputs` with each tensor repeated along its dynamic axes of size 1.

    bind: gives inputs the structure of the dynamic shapes. A dimension is left as it is if another axis of it
    has more elements, if its size is computed from another dimension's or the other way round, or if it may
    not be 2.
    """
    pytree = torch.utils._pytree
    given, structure = pytree.tree_flatten(inputs)
    # A tensor that is given twice may have two entries in the shapes: each place gets its own object.
    places = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in given]
    axes = [
        (id(tensor), tensor.shape[axis], axis, dim)
        for tensor, spec in with_specs(torch, bind(pytree.tree_unflatten(places, structure)), shapes)
        for axis, dim in _dims(torch, spec)
        if axis < tensor.ndim
    ]
    kept = {_root(dim) for _, size, _, dim in axes if not _can_widen(size, dim)}
    chosen: dict[int, set[int]] = {}
    for place, _, axis, dim in axes:
        if _root(dim) not in kept:
            chosen.setdefault(place, set()).add(axis)
    if not chosen:
        return inputs
    leaves = []
    for leaf, place in zip(given, places, strict=True):
        for axis in chosen.get(id(place), ()):
            leaf = torch.cat([leaf] * _WIDENED, axis)
        leaves.append(leaf)
    return pytree.tree_unflatten(leaves, structure)


def _dims(torch: ModuleType, spec: Any) -> Iterator[tuple[int, Any]]:
    """The axes that have a torch.export.Dim, with it."""
    if isinstance(spec, (dict, tuple, list)):
        for axis, dim in spec.items() if isinstance(spec, dict) else enumerate(spec):
            if isinstance(dim, torch.export.Dim):
                yield axis, dim


def _root(dim: Any) -> str:
    """The name of the dimension, or of the one that its size is computed from."""
    return str(getattr(dim, "root", dim).__name__)


def _can_widen(size: int, dim: Any) -> bool:
    return size == 1 and not hasattr(dim, "root") and bool(dim.min <= _WIDENED <= dim.max)


def with_specs(torch: ModuleType, value: Any, spec: Any) -> Iterator[tuple[Any, Any]]:
    """The tensors in `value`, each with its entry in `spec`, dynamic shapes of the same structure."""
    if isinstance(value, torch.Tensor):
        yield value, spec
    elif isinstance(value, Mapping):
        in_order = dict(zip(value, spec, strict=False)) if isinstance(spec, (tuple, list)) else {}
        specs = spec if isinstance(spec, Mapping) else in_order
        for key, item in value.items():
            yield from with_specs(torch, item, specs.get(key))
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            inner = spec[index] if isinstance(spec, (tuple, list)) and index < len(spec) else None
            yield from with_specs(torch, item, inner)
    elif (node := torch.utils._pytree.SUPPORTED_NODES.get(type(value))) is not None:
        yield from with_specs(torch, list(node.flatten_fn(value)[0]), spec)
