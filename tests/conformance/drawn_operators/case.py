"""Drawn nodes as files, with the results of ONNX Runtime at one or several sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from kiln.config.dims import Segment
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.onnx.plain_session import plain_session
from kiln.frontend.options import DimRange, ImportOptions
from kiln.frontend.quiet import quiet_stderr
from onnx import TensorProto, helper, numpy_helper

from ..onnx_nodes.cases import Array
from ..onnx_nodes.loading import asked_bound
from .draw import Draw, Maker, Node

OPEN = tuple(range(1, 10))  # the sizes that a dynamic axis may have
_RELATIVE, _ABSOLUTE = 2e-4, 2e-5
_MOST_BOUND = 4096


@dataclass(frozen=True)
class DrawnCase:
    """A node as a file, and its runs.

    name: `<operator>/<seed>`, with ` open` where an axis is a dimension. range: the sizes of that dimension.
    runs: for each run, the sizes of the dimensions and the inputs. outputs: of all runs, one after another.
    """

    name: str
    model: onnx.ModelProto
    range: tuple[int, int] | None
    runs: list[tuple[dict[str, int], list[Array]]]
    outputs: list[Array]

    @property
    def inputs(self) -> list[Array]:
        return self.runs[0][1]


def cases_of(operator: str, maker: Maker, seeds: Sequence[int]) -> Iterator[DrawnCase]:
    """The cases of an operator that ONNX Runtime takes; every second one has a dynamic axis, if it can."""
    for seed in seeds:
        case = None
        if seed % 2:
            case = _open_case(operator, maker, seed)
        case = case or _fixed_case(operator, maker, seed)
        if case is not None:
            yield case


def _fixed_case(operator: str, maker: Maker, seed: int) -> DrawnCase | None:
    try:
        drawn = maker(Draw(operator, seed))
    except ValueError:  # what was drawn has no result
        return None
    return fixed_case(f"{operator}/{seed}", drawn)


def fixed_case(name: str, node: Node, expected: Sequence[Array] | None = None) -> DrawnCase | None:
    """A node on its own inputs; None if ONNX Runtime refuses it. `expected`: results in place of its own."""
    model = _model(node, node)
    assert model is not None
    operands = [item.value for item in node.inputs if item is not None and not item.constant]
    expected_outputs = [list(expected)] if expected is not None else reference(model, [operands])
    if expected is not None:
        for value, array in zip(model.graph.output, expected, strict=True):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, array.shape))
    if expected_outputs is None or expected_outputs[0] is None or not operands:
        return None
    return DrawnCase(name, model, None, [({}, operands)], expected_outputs[0])


def _open_case(operator: str, maker: Maker, seed: int) -> DrawnCase | None:
    """A case with one dynamic axis: the first of the drawn sizes, in a random order, that can be dynamic."""
    first = Draw(operator, seed)
    try:
        node = maker(first)
    except ValueError:
        return None
    for at in np.random.default_rng(seed).permutation(len(first.sizes)):
        made = {}
        for size in OPEN:
            with contextlib.suppress(Exception):
                made[size] = maker(Draw(operator, seed, int(at), size))
        if 7 not in made or 8 not in made or not _same(node, made):
            continue
        model = _model(made[7], made[8], 7)
        if model is None:
            continue
        givens = [
            [item.value for item in made[size].inputs if item is not None and not item.constant]
            for size in made
        ]
        found = reference(model, givens)
        if found is None:
            continue
        results = dict(zip(made, found, strict=True))
        taken = [size for size in OPEN if results.get(size) is not None]
        blocks = np.split(taken, np.flatnonzero(np.diff(taken) > 1) + 1) if taken else []
        block = max(blocks, key=len, default=[])
        if len(block) < 2:
            continue
        sizes = sorted({int(block[0]), int(block[len(block) // 2]), int(block[-1])})
        inputs = dict(zip(made, givens, strict=True))
        runs = [({"n": size}, inputs[size]) for size in sizes]
        outputs = [value for size in sizes for value in results[size] or []]
        return DrawnCase(f"{operator}/{seed} open", model, (sizes[0], sizes[-1]), runs, outputs)
    return None


def _same(node: Node, made: dict[int, Node]) -> bool:
    """Whether nodes differ in the shapes of their data alone."""
    for other in made.values():
        if len(other.inputs) != len(node.inputs) or any(
            repr(getattr(other, part)) != repr(getattr(node, part))
            for part in ("attributes", "steps", "nodes", "functions")
        ):
            return False
        for a, b in zip(node.inputs, other.inputs, strict=True):
            if (a is None) != (b is None):
                return False
            if a is None or b is None:
                continue
            if a.constant != b.constant:
                return False
            if a.constant and (a.value.shape != b.value.shape or (a.value != b.value).any()):
                return False
            if a.value.ndim != b.value.ndim or a.value.dtype != b.value.dtype:
                return False
    return True


def _model(node: Node, other: Node, size: int = 0) -> onnx.ModelProto | None:
    """The file of a node; axes that differ from those of `other` are dimension n, which is `size` here.

    None where no axis differs, or one that does is not as large as the dimension.
    """
    names, inputs, weights, opened = [], [], [], False
    for number, item in enumerate(node.inputs):
        names.append("" if item is None else f"x{number}")
        if item is None:
            continue
        if item.constant:
            weights.append(numpy_helper.from_array(np.array(item.value, order="C"), names[-1]))
            continue
        shape: list[int | str] = []
        beside = other.inputs[number]
        for here, there in zip(item.value.shape, beside.value.shape if beside else (), strict=True):
            if here != there and (here, there) != (size, size + 1):
                return None
            opened |= here != there
            shape.append("n" if here != there else here)
        kind = helper.np_dtype_to_tensor_dtype(item.value.dtype)
        inputs.append(helper.make_tensor_value_info(names[-1], kind, shape))
    if size and not opened:
        return None
    outputs = node.results or [f"y{number}" for number in range(node.outputs)]
    values = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(_nodes(node, names, outputs), "g", inputs, values, weights)
    opsets = [helper.make_opsetid("", node.opset)]
    if node.domain:
        opsets.append(helper.make_opsetid(node.domain, node.domain_opset))
    opsets += [helper.make_opsetid(domain, 1) for domain in {one.domain for one in node.functions}]
    model = helper.make_model(graph, opset_imports=opsets, functions=node.functions)
    model.ir_version = min(10, helper.find_min_ir_version_for(opsets[:1]) if node.opset < 22 else 10)
    model.ir_version = max(model.ir_version, 4)
    return model


def _nodes(node: Node, names: list[str], outputs: list[str]) -> list[onnx.NodeProto]:
    if node.nodes:
        return node.nodes
    if not node.steps:
        return [
            helper.make_node(node.operator, names, outputs, "the_node", domain=node.domain, **node.attributes)
        ]
    return [
        helper.make_node(step.operator, step.inputs, step.outputs, f"node_{number}", **step.attributes)
        for number, step in enumerate(node.steps)
    ]


def reference(model: onnx.ModelProto, givens: Sequence[Sequence[Array]]) -> list[list[Array] | None] | None:
    """The results of ONNX Runtime for each list of inputs, None where it refuses them; sets output types."""
    with quiet_stderr():
        try:
            session = plain_session(model.SerializeToString(), 4)
        except Exception:
            return None
        found: list[list[Array] | None] = []
        for given in givens:
            feeds = dict(zip((item.name for item in model.graph.input), given, strict=True))
            try:
                found.append(session.run(None, feeds))
            except Exception:
                found.append(None)
    known = next((values for values in found if values is not None), None)
    if known is None or (len(givens) == 1 and found[0] is None):
        return None
    for value, array in zip(model.graph.output, known, strict=True):
        if not isinstance(array, np.ndarray):
            return None
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        if len(givens) == 1:
            value.CopyFrom(
                helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, array.shape)
            )
    return found


def save_case(case: DrawnCase, folder: Path) -> tuple[Path, ImportOptions]:
    """Write the file; returns its path and the options of the dimension."""
    path = folder / "m.onnx"
    onnx.save(case.model, path)
    if case.range is None:
        return path, ImportOptions("m")
    least, most = case.range
    segment = Segment(strategy="dynamic", min=least, max=most, multiple=1)
    return path, ImportOptions("m", dims={"n": DimRange("n", least, most)}, bucket={"n": segment})


def load_case(case: DrawnCase, folder: Path) -> tuple[Path, ImportOptions]:
    """Write the file; returns its path and the options: the dimension, and bounds that the errors ask for."""
    path, options = save_case(case, folder)
    for _ in range(3):
        try:
            import_model(path, options)
        except KilnError as error:
            wanted_bound = asked_bound(error)
            if wanted_bound is None:
                break
            greatest = max((max(value.shape, default=1) for value in case.outputs), default=1) + 8
            options = replace(options, bounds={**options.bounds, wanted_bound: min(greatest, _MOST_BOUND)})
        except Exception:
            break
        else:
            break
    return path, options


def compare_case(case: DrawnCase, found: Sequence[Array]) -> str:
    """The difference of results from ONNX Runtime's, in words; empty if they agree."""
    if len(found) != len(case.outputs):
        return f"{len(found)} results, expected {len(case.outputs)}"
    for number, (ours, theirs) in enumerate(zip(found, case.outputs, strict=True)):
        if theirs.dtype.name == "bfloat16" and ours.dtype == np.uint16:  # the bits, as Kiln stores them
            ours = ours.view(theirs.dtype)
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return f"output {number}: {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
        if theirs.dtype.kind in "biu":
            near = ours == theirs
        else:
            a, b = ours.astype("float64"), theirs.astype("float64")
            greatest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
            relative, absolute = (_RELATIVE, _ABSOLUTE) if ours.dtype.itemsize > 2 else (4e-3, 2e-3)
            if ours.dtype.name == "bfloat16":
                relative, absolute = 2.0**-6, 2.0**-7
            near = np.isclose(a, b, relative, absolute * max(1.0, greatest), equal_nan=True)
        if not near.all():
            where = tuple(int(axis[0]) for axis in np.nonzero(np.atleast_1d(~near)))
            got, want = np.atleast_1d(ours)[where], np.atleast_1d(theirs)[where]
            return f"output {number}: {int((~near).sum())} of {near.size}, at {list(where)} {got}, not {want}"
    return ""


def described(case: DrawnCase) -> str:
    """The node of a case in one line: attributes, types and shapes; of a graph, its nodes."""
    if len(case.model.graph.node) > 1:
        return onnx.printer.to_text(case.model.graph).replace("\n", "\n         ")
    node = case.model.graph.node[0]
    weights = {item.name: f"const {numpy_helper.to_array(item).dtype}{list(item.dims)}"
               + (f"={numpy_helper.to_array(item).tolist()}" if np.prod(item.dims) <= 8 else "")
               for item in case.model.graph.initializer}  # fmt: skip
    for item in case.model.graph.input:
        kind = item.type.tensor_type
        sizes = ",".join(str(dim.dim_param or dim.dim_value) for dim in kind.shape.dim)
        weights[item.name] = f"{TensorProto.DataType.Name(kind.elem_type).lower()}[{sizes}]"
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    inputs = ", ".join(weights.get(name, "-") for name in node.input)
    opset = case.model.opset_import[0].version
    spread = f" n={case.range}" if case.range else ""
    return f"{node.op_type}-{opset}{spread} ({inputs}) {attributes}"
