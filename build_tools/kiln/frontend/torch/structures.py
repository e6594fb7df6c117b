"""The arguments and results of an exported program in tuples, lists and dicts alone.

A program remembers how its tensors were nested, by the Python classes of the user: dataclasses, named tuples,
the results of the library transformers. Whoever loads its archive needs these classes, and PyTorch refuses to
save those without a registered name. As dicts by field, the archive can be saved and loaded everywhere.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

_PLAIN = (tuple, list, dict, OrderedDict)


def plain_structures(program: Any) -> None:
    """Nest the arguments and results of an ExportedProgram in dicts where it has other classes."""
    from torch.utils import _pytree

    for entry in program.module_call_graph:
        if entry.signature is not None:
            entry.signature.in_spec = _plain(entry.signature.in_spec)
            entry.signature.out_spec = _plain(entry.signature.out_spec)
    if program.example_inputs is not None:
        leaves = _pytree.tree_leaves(program.example_inputs)
        program.example_inputs = _pytree.tree_unflatten(leaves, program.call_spec.in_spec)


def _plain(spec: Any) -> Any:
    """`spec`, a TreeSpec, with dicts in place of the nodes of other classes; equal if it has none."""
    from torch.utils import _pytree

    if spec.is_leaf():
        return spec
    children = [_plain(child) for child in spec.children_specs]
    if spec.type in _PLAIN:
        return _pytree.TreeSpec(spec.type, spec.context, children)
    node = _pytree.SUPPORTED_NODES[spec.type]
    return _pytree.TreeSpec(dict, _keys(node, spec, len(children)), children)


def _keys(node: Any, spec: Any, count: int) -> list[str]:
    """The names of the parts of a node, numbers where its class names none."""
    numbers = [str(index) for index in range(count)]
    if node.flatten_with_keys_fn is None:
        return numbers
    parts, _ = node.flatten_with_keys_fn(node.unflatten_fn(numbers, spec.context))
    keys = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))) for key, _ in parts]
    return keys if all(keys) and len(set(keys)) == count else numbers
