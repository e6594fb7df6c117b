"""export: stage that converts an archive of torch.export (.pt2) to an ONNX file.

PyTorch's own exporter (torch.onnx, dynamo=True) converts the program; the parameters keep their names. The
names of source files, which the exporter writes into the ONNX file, are removed, so that the result is the
same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.frontend.onnx.kept_state import write_state
from kiln.frontend.torch.allowed_types import with_allowed_types
from kiln.frontend.torch.bits import bits
from kiln.frontend.torch.choices import choices
from kiln.frontend.torch.composed import composed
from kiln.frontend.torch.convolutions import convolutions
from kiln.frontend.torch.counts import counts
from kiln.frontend.torch.distinct_names import with_distinct_names
from kiln.frontend.torch.exportable import exportable
from kiln.frontend.torch.fixed_sizes import (
    check_elements,
    check_sizes,
    dynamic_axes,
    widen_pairs,
)
from kiln.frontend.torch.groups import grouped
from kiln.frontend.torch.ignored_options import ignored_options
from kiln.frontend.torch.kept_buffers import with_kept_buffers
from kiln.frontend.torch.library import load_torch, open_archive, quiet_torch, reason
from kiln.frontend.torch.matrices import matrices
from kiln.frontend.torch.needed_opset import with_needed_opset
from kiln.frontend.torch.output_types import cast_outputs, output_types
from kiln.frontend.torch.present import present
from kiln.frontend.torch.quantised import quantised
from kiln.frontend.torch.recurrent import any_length, recurrent
from kiln.frontend.torch.resizes import resizes
from kiln.frontend.torch.rounded_sizes import without_rounding
from kiln.frontend.torch.scans import scans
from kiln.frontend.torch.special import special
from kiln.frontend.torch.translations import translations
from kiln.frontend.torch.unconverted import unconverted
from kiln.frontend.torch.writes import writes
from kiln.stages.model import ExportStage

if TYPE_CHECKING:
    from torch.export import ExportedProgram

OPSET = 18  # the opset for which PyTorch's exporter is written; it converts to others


def run(args: ExportStage) -> None:
    """Write the ONNX file. Raises KilnError for an archive or a program that cannot be converted."""
    try:
        atomic_write(args.out, convert(args.source, args.tools))
    except KilnError as error:
        raise KilnError(str(error).replace(str(args.source), args.called or str(args.source))) from error


def convert(path: Path, tools: str = "") -> bytes:
    """An ONNX file that computes the same as the archive `path`; `tools`: the versions, for errors."""
    load_torch(str(path))
    opened = open_archive(path)
    check_elements(path, opened)
    axes = dynamic_axes(opened)
    widen_pairs(opened)
    import torch

    try:
        with quiet_torch(), torch.no_grad(), any_length(), composed():
            without_rounding(opened)
            program, written, buffers = with_kept_buffers(opened)
            dtypes = output_types(program)
            program = exportable(program)
            from onnxscript import optimizer

            exported = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                optimize=False,  # its rewriting takes 1e-8 for 0 and 1.000009 for 1, and drops them
                custom_translation_table=_translations(),
            )
            optimizer.inline(exported.model)
            with_distinct_names(exported.model)
            optimizer.fold_constants(exported.model)
            optimizer.remove_unused_nodes(exported.model)
            with_needed_opset(exported.model)
            model = exported.model_proto
    except KilnError as error:
        raise KilnError(f"{path}: {error}") from error
    except Exception as error:  # PyTorch raises exceptions of many types
        raise KilnError(f"{path}: PyTorch ({tools}) cannot convert it to ONNX: {_cause_of(error)}") from error
    _check(path, exported.exported_program or program)
    if not model.graph.output:
        raise KilnError(f"{path}: the module returns no tensor; return the results in its forward")
    check_sizes(path, axes, exported.exported_program)
    widen_indices(model.graph)
    with_allowed_types(model)
    cast_outputs(model.graph, dtypes)
    _restore_inputs(model.graph, program.graph_signature.user_inputs)
    _strip(model)
    names = _output_names(opened, len(model.graph.output) - len(written) - len(buffers))
    names += [f"{name}_next" for name in written]
    _copy_outputs(model.graph, len(written) + len(buffers))
    kept = _name_state(model, buffers, names)
    _rename_outputs(model, [*names, *kept])
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except Exception as error:  # the class depends on protobuf's implementation
        raise KilnError(
            f"{path}: as an ONNX file it takes 2 GiB or more, which one file cannot hold: give the module "
            "weights of 16 bits, such as model.half(), or export it in parts"
        ) from error


def _name_state(model: Any, buffers: Mapping[str, Any], outputs: Sequence[str]) -> list[str]:
    """Describe the last inputs and outputs, old and new values of `buffers`, as state, and name them so.

    `outputs`: names of the other outputs. Returns the names of the new values.
    """
    graph, entries = model.graph, {}
    first = len(graph.input) - len(buffers)
    others = {*outputs, *(value.name for value in graph.input[:first])}
    changes: dict[str, str] = {}
    for index, (buffer, value) in enumerate(buffers.items(), first):
        name = f"{buffer}.kept" if buffer in others else buffer
        changes[graph.input[index].name] = name
        result = graph.output[index - len(graph.input)]
        new = f"{name}.next"
        changes[result.name] = new
        numbers = value.float() if value.is_floating_point() else value
        uniform = numbers.numel() > 0 and bool((numbers == numbers.flatten()[:1]).all())
        initial = numbers.flatten()[0].item() if uniform else numbers.tolist()
        entries[name] = {"output": new, "initial": initial}
    _apply(graph, changes)
    for value in graph.input:
        value.name = changes.get(value.name, value.name)
    write_state(model, entries)
    return [entry["output"] for entry in entries.values()]


def _copy_outputs(graph: Any, last: int) -> None:
    """Copy outputs that are inputs, weights or other outputs: each becomes the result of its own node.

    The `last` outputs, new values of inputs and buffers, are copied in any case: a run writes to them.
    """
    import onnx

    own = {name for node in graph.node for name in node.output}
    for index, result in enumerate(graph.output):
        if result.name in own and index < len(graph.output) - last:
            own.remove(result.name)
            continue
        copy = f"{result.name}.{index}.copy"
        graph.node.append(onnx.helper.make_node("Identity", [result.name], [copy], copy))
        result.name = copy


def _translations() -> dict[Any, Any]:
    """The operators that Kiln converts in place of PyTorch's exporter."""
    modules = (
        bits,
        unconverted,
        grouped,
        quantised,
        convolutions,
        counts,
        recurrent,
        scans,
        special,
        matrices,
        choices,
        ignored_options,
        resizes,
        translations,
        writes,
    )
    return present({operator: function for table in modules for operator, function in table().items()})


def _check(path: Path, program: ExportedProgram) -> None:
    """Raise KilnError for a program that still changes a buffer, which is none of its state."""
    changed = program.graph_signature.buffers_to_mutate
    if changed:
        raise KilnError(
            f"{path}: the module changes its buffer '{next(iter(changed.values()))}' when it runs; return "
            "the new value as an output, and give it as an input of the next run"
        )


_UNKNOWN = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.:]+)', overload='(\w+)'")


def _cause_of(error: BaseException) -> str:
    """The reason in an exception of the exporter; for missing operators their names."""
    cause: BaseException | None = error
    while cause is not None:
        names_found = [".".join(found) for found in _UNKNOWN.findall(str(cause))]
        if type(cause).__name__ == "UnsupportedOperatorException":  # of one without a form for shapes alone
            names_found = str(cause).split()[:1]
        if names_found:
            return f"its exporter does not know the operator {', '.join(dict.fromkeys(names_found))}"
        cause = cause.__cause__
    return reason(error)


def widen_indices(graph: Any) -> None:
    """Cast indices of ScatterND and GatherND to int64: the exporter leaves some int32, which ONNX rejects.

    Those of dynamic sizes may have no type in the file: they are cast, too.
    """
    import onnx

    kinds = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input)}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for position in reversed(range(len(graph.node))):
        node = graph.node[position]
        if (
            node.op_type not in ("ScatterND", "GatherND")
            or kinds.get(node.input[1]) == onnx.TensorProto.INT64
        ):
            continue
        wide = f"{node.output[0]}.indices"
        cast = onnx.helper.make_node(
            "Cast", [node.input[1]], [wide], f"{wide}.cast", to=onnx.TensorProto.INT64
        )
        node.input[1] = wide
        graph.node.insert(position, cast)


def _restore_inputs(graph: Any, names: Sequence[Any]) -> None:
    """Give inputs their names: the exporter calls an input that is a result of a node like that node."""
    if len(names) != len(graph.input):
        return
    changes = {value.name: str(name) for value, name in zip(graph.input, names, strict=True)}
    changes = {old: new for old, new in changes.items() if old != new}
    for value in graph.input:
        value.name = changes.get(value.name, value.name)
    _apply(graph, changes)


def _output_names(program: ExportedProgram, count: int) -> list[str]:
    """Names for the outputs: the keys or fields with which the module returns them, else `output`."""
    import torch.utils._pytree as pytree

    try:
        spec = program.call_spec.out_spec
        paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(count)), spec))
        keys = [[str(getattr(key, "key", getattr(key, "name", ""))) for key in path] for path, _ in paths]
    except Exception:  # a private interface of PyTorch: the names are not essential
        keys = []
    named = [re.sub(r"\W+", "_", "_".join(filter(None, key))).strip("_") for key in keys]
    if len(named) != count or not all(named) or len(set(named)) != count:
        named = ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
    return named


def _rename_outputs(model: Any, names: list[str]) -> None:
    """Rename the outputs of an ONNX model; names of other tensors that are in the way get a suffix."""
    graph = model.graph
    names_in_use = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    produced = {name for node in graph.node for name in node.output}
    changes: dict[str, str] = {}
    for value, requested in zip(graph.output, names, strict=True):
        new = requested
        while new != value.name and (new in names_in_use or new in changes.values()):
            new += "_out"
        changes[value.name] = new
    for name in (produced & set(changes.values())) - changes.keys():
        changes[name] = f"{name}.inner"
    _apply(graph, changes)


def _apply(graph: Any, changes: dict[str, str]) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = changes.get(name, name)
        for index, name in enumerate(node.output):
            node.output[index] = changes.get(name, name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _apply(inner, changes)
    for value in (*graph.output, *graph.value_info):
        value.name = changes.get(value.name, value.name)


def _strip(model: Any) -> None:
    """Remove the documentation that the exporter adds: stack traces with the paths of source files."""
    model.doc_string = ""
    del model.metadata_props[:]
    for function in model.functions:
        function.doc_string = ""
        del function.metadata_props[:]
    _strip_graph(model.graph)
    for function in model.functions:
        _strip_nodes(function.node)


def _strip_graph(graph: Any) -> None:
    graph.doc_string = ""
    del graph.metadata_props[:]
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.doc_string = ""
        del value.metadata_props[:]
    _strip_nodes(graph.node)


def _strip_nodes(nodes: Any) -> None:
    for node in nodes:
        node.doc_string = ""
        del node.metadata_props[:]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _strip_graph(attribute.g)
            for graph in attribute.graphs:
                _strip_graph(graph)
