"""The arguments and results of an exported program in tuples, lists and dicts alone.

A program remembers how its tensors were nested, by the Python classes of the user: dataclasses, named tuples,
the results of the library transformers. Whoever loads its archive needs these classes, and PyTorch refuses to
save those without a registered name. As dicts by field, the archive can be saved and loaded everywhere.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_PLAIN = (tuple, list, dict, OrderedDict)


def plain_structures(program: ExportedProgram) -> None:
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
    keyed_parts, _ = node.flatten_with_keys_fn(node.unflatten_fn(numbers, spec.context))
    keys = [str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", "")))) for key, _ in keyed_parts]
    return keys if all(keys) and len(set(keys)) == count else numbers


# PyTorch up to 2.14, and from 2.15 on.
_UNKNOWN = re.compile(
    r"Deserializing (\S+) in pytree (?:is|failed because the serialized type is) not registered"
)


def add_unknown(error: BaseException) -> bool:
    """Register a dict in place of the class that `error`, of loading an archive, names.

    Returns False if it names none that is missing.

    An archive that another program saved names the classes of its results, such as those of transformers.
    """
    from torch.utils import _pytree

    match = _UNKNOWN.search(str(error))
    if match is None or match[1] in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        return False
    kind = type("Fields", (dict,), {})
    _pytree.register_pytree_node(
        kind,
        lambda value: (list(value.values()), list(value)),
        lambda values, context: _fields(kind, list(values), context),
        serialized_type_name=match[1],
        flatten_with_keys_fn=_pytree._dict_flatten_with_keys,
    )
    return True


def _fields(kind: type[dict[str, Any]], values: list[Any], context: Any) -> dict[str, Any]:
    """The dict of a node; its context has the names of the parts, a dataclass's as the first of two lists."""
    names_in_context = list(context) if isinstance(context, (list, tuple)) else []
    nested = names_in_context and isinstance(names_in_context[0], (list, tuple))
    names = [str(name) for name in (names_in_context[0] if nested else names_in_context)]
    if len(names) != len(values) or len(set(names)) != len(values):
        names = [str(index) for index in range(len(values))]
    return kind(zip(names, values, strict=True))
