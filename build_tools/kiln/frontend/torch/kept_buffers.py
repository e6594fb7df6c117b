"""Makes the buffers that a program writes inputs and outputs, so that Kiln keeps them from run to run.

A cache of keys and values, a counter or the last samples of a stream are such buffers. PyTorch's exporter to
ONNX drops what a program writes to them, and to its inputs, whose new values become outputs too.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError
from kiln.frontend.torch.present import aten as own_operators

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


def with_kept_buffers(program: ExportedProgram) -> tuple[Any, list[str], dict[str, Any]]:
    """`program` as a function without side effects, with the inputs and the buffers that it wrote.

    The new program takes the buffers that it wrote after its inputs. It returns after its other outputs the
    new values of the inputs that it wrote, whose names are the list, and then those of the buffers: the
    dictionary has their first values by name, in order. A program that writes neither is returned as it is.
    Raises KilnError for a program in training mode, whose statistics change in each run.
    """
    import torch

    _cast_copies(torch, program)
    merge_constants(program)
    signature = program.graph_signature
    names = {*signature.inputs_to_buffers, *signature.user_inputs}
    writes = any(node.name in names for node in _written(torch, program))
    if not writes and not signature.buffers_to_mutate and not signature.user_inputs_to_mutate:
        return program, [], {}
    functional = program.run_decompositions({})
    changed = functional.graph_signature.buffers_to_mutate
    inputs = list(dict.fromkeys(functional.graph_signature.user_inputs_to_mutate.values()))
    if not changed and not inputs:
        return program, [], {}
    _check_mode(functional, changed)
    tensors = {**functional.constants, **functional.state_dict}
    buffers = {name: tensors[name] for name in changed.values()}
    return _pure(torch, functional, inputs, buffers), inputs, buffers


def _written_arguments(torch: ModuleType, node: Node) -> list[Any]:
    """The arguments that a node of a graph writes to."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return []
    arguments = [
        node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        for index, argument in enumerate(node.target._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return [item for item in torch.utils._pytree.tree_leaves(arguments) if isinstance(item, torch.fx.Node)]


def _written(torch: ModuleType, program: ExportedProgram) -> set[Any]:
    """The nodes of `program` that make the tensors to whose memory it writes, outside of branches."""
    writes = [target for node in program.graph.nodes for target in _written_arguments(torch, node)]
    return {_viewed(torch, target) for target in writes}


def _viewed(torch: ModuleType, node: Node) -> Any:
    """The node of the tensor whose memory the tensor of `node` is in: the operand of views and of writes."""
    while node.target is operator.getitem or isinstance(node.target, torch._ops.OpOverload):
        if node.target is operator.getitem:
            node = node.args[0]
            continue
        returned = node.target._schema.returns
        if not returned or returned[0].alias_info is None or not node.all_input_nodes:
            break
        node = node.all_input_nodes[0]
    return node


def _cast_copies(torch: ModuleType, program: ExportedProgram) -> None:
    """Cast the value that a copy writes to the type of the tensor that it writes to.

    PyTorch 2.13 forgets the cast when it makes a program functional; tests/conformance/test_torch_state.py
    would pass without this function once it does not.
    """
    aten = torch.ops.aten
    for node in program.graph.find_nodes(op="call_function", target=aten.copy_.default):
        to, value = (argument.meta["val"] for argument in node.args[:2])
        if to.dtype != value.dtype:
            with program.graph.inserting_before(node):
                cast = program.graph.call_function(
                    aten._to_copy.default, (node.args[1],), {"dtype": to.dtype}
                )
            cast.meta["val"] = value.to(to.dtype)
            node.update_arg(1, cast)
            program.graph_module.recompile()


def merge_constants(program: ExportedProgram) -> None:
    """Make buffers of the constants of `program` that it writes: tensors that are attributes of the module.

    A constant in the memory of a buffer becomes that buffer, as in the static caches of transformers. An
    archive keeps constants and parameters apart: so this comes before it is saved, too.
    """
    import torch

    kinds = torch.export.graph_signature.InputKind
    specs = program.graph_signature.input_specs
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    written = _written(torch, program)
    if not written:
        return
    tensors = {**program.constants, **program.state_dict}
    buffers = {
        _memory(tensors[spec.target]): nodes[spec.arg.name] for spec in specs if spec.kind == kinds.BUFFER
    }
    for spec in [spec for spec in specs if spec.kind == kinds.CONSTANT_TENSOR]:
        node = nodes[spec.arg.name]
        buffer = buffers.get(_memory(tensors[spec.target]))
        if buffer is not None and (node in written or buffer in written):
            node.replace_all_uses_with(buffer)
            program.graph.erase_node(node)
            specs.remove(spec)
        elif node in written:
            spec.kind, spec.persistent = kinds.BUFFER, False
    program.graph_module.recompile()


def _memory(tensor: Any) -> tuple[Any, ...]:
    """A key that is equal for tensors with the same elements in memory: address, type, shape, strides."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _check_mode(program: ExportedProgram, buffers: Mapping[str, str]) -> None:
    """Raise KilnError where a buffer has statistics of batch normalisation; `buffers`: by output its name."""
    for value in program.graph.output_node().args[0]:
        name = buffers.get(getattr(value, "name", ""))
        operands = value.all_input_nodes if name else []
        if any(operand.target in _statistics() for operand in operands):
            raise KilnError(
                f"the module was exported in training mode: it changes its buffer '{name}' in each run; "
                "call module.eval() before torch.export.export"
            )


def _statistics() -> tuple[Any, ...]:
    """The operators that compute new statistics of batch normalisation."""
    aten = own_operators()
    return (aten._native_batch_norm_legit_functional.default, aten._batch_norm_with_update_functional.default)


def _pure(torch: ModuleType, program: ExportedProgram, written: list[str], buffers: Mapping[str, Any]) -> Any:
    """`program`, which is functional, with `buffers`, first values by name, as last inputs and outputs.

    The new values of the inputs `written` are outputs before those.
    """
    from torch.export.exported_program import ExportedProgram
    from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind

    signature, graph = program.graph_signature, program.graph
    nodes = {node.name: node for node in graph.find_nodes(op="placeholder")}
    by_name = {spec.target: spec for spec in signature.input_specs if spec.kind == InputKind.BUFFER}
    kept = [by_name[name] for name in buffers]
    rest = [spec for spec in signature.input_specs if spec not in kept]
    last = list(nodes.values())[-1]
    for spec in kept:
        last.append(nodes[spec.arg.name])
        last = nodes[spec.arg.name]
        spec.kind, spec.target, spec.persistent = InputKind.USER_INPUT, None, None
    output = graph.output_node()
    results = list(zip(signature.output_specs, output.args[0], strict=True))
    of_inputs, of_buffers = (
        {spec.target: (spec, value) for spec, value in results if spec.kind == kind}
        for kind in (OutputKind.USER_INPUT_MUTATION, OutputKind.BUFFER_MUTATION)
    )
    new_values = [*(of_inputs[name] for name in written), *(of_buffers[name] for name in buffers)]
    changes = {id(spec) for spec, _ in new_values}
    ordered = [*((spec, value) for spec, value in results if id(spec) not in changes), *new_values]
    for spec, _ in new_values:
        spec.kind, spec.target = OutputKind.USER_OUTPUT, None
    output.args = (tuple(value for _, value in ordered),)
    program.graph_module.recompile()
    inputs = [spec.arg.name for spec in kept]
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature([*rest, *kept], [spec for spec, _ in ordered]),
        state_dict={name: value for name, value in program.state_dict.items() if name not in buffers},
        range_constraints=program.range_constraints,
        module_call_graph=_calls(torch, program, inputs, len(new_values)),
        example_inputs=_examples(program, dict(zip(inputs, buffers.values(), strict=True))),
        constants={name: value for name, value in program.constants.items() if name not in buffers},
        verifiers=program.verifiers,
    )


def _calls(torch: ModuleType, program: ExportedProgram, inputs: list[str], count: int) -> list[Any]:
    """The call graph of `program` with keyword arguments `inputs` and `count` results more."""
    from dataclasses import replace

    pytree = torch.utils._pytree
    first, *others = program.module_call_graph
    call = first.signature
    positional, keywords = pytree.tree_unflatten(list(range(call.in_spec.num_leaves)), call.in_spec)
    in_spec = pytree.tree_structure((positional, {**keywords, **dict.fromkeys(inputs, 0)}))
    returned = pytree.tree_unflatten([0] * call.out_spec.num_leaves, call.out_spec)
    out_spec = pytree.tree_structure((returned, (0,) * count))
    argument_names = call.forward_arg_names and [*call.forward_arg_names, *inputs]
    changed = replace(call, in_spec=in_spec, out_spec=out_spec, forward_arg_names=argument_names)
    return [replace(first, signature=changed), *others]


def _examples(program: ExportedProgram, buffers: Mapping[str, Any]) -> Any:
    """The example inputs of `program`, with those of the buffers."""
    if program.example_inputs is None:
        return None
    positional, keywords = program.example_inputs
    return positional, {**keywords, **buffers}
