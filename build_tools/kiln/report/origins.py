"""The nodes of the model's file that a step computes, found by order, operator and size of the results.

Passes rewrite the graph and keep no names of nodes. A step that computes, for instance, a convolution with
4096 results belongs to a convolution with as many results in the file: where the plan and the file have
equally many of these, they are paired in order. If the numbers differ, as after a rewrite that splits or
removes nodes, the step gets no node, so that a report never shows a wrong one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.lower.schema import KernelRecord
from kiln.plan.schema import ExpressionArgument, Plan, PlannedStep, PortArgument

# Kind → operators of Relax, and operators of model files in lower case without "_".
_KINDS: dict[str, tuple[set[str], set[str]]] = {
    "conv": (
        {"conv1d", "conv2d", "conv3d", "conv1d_transpose", "conv2d_transpose", "conv3d_transpose"},
        {"conv", "convtranspose", "qlinearconv", "convinteger", "fusedconv", "conv2d", "conv3d",
         "depthwiseconv2d", "transposeconv", "nhwcconv"},
    ),
    "matmul": (
        {"matmul"},
        {"matmul", "gemm", "qlinearmatmul", "matmulinteger", "qgemm", "fullyconnected", "batchmatmul",
         "fusedmatmul", "matmulnbits"},
    ),
    "average": (
        {"avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool2d", "mean"},
        {"averagepool", "averagepool2d", "globalaveragepool", "reducemean", "mean", "qlinearaveragepool",
         "qlinearglobalaveragepool"},
    ),
    "max_pool": (
        {"max_pool1d", "max_pool2d", "max_pool3d"}, {"maxpool", "maxpool2d", "globalmaxpool"},
    ),
    "softmax": ({"softmax", "log_softmax"}, {"softmax", "logsoftmax", "qlinearsoftmax"}),
    "norm": ({"layer_norm", "rms_norm", "group_norm", "instance_norm"},
             {"layernormalization", "rmsnormalization", "simplifiedlayernormalization", "groupnormalization",
              "instancenormalization", "skiplayernormalization"}),
    "take": ({"take", "gather_nd", "gather_elements"}, {"gather", "gathernd", "gatherelements"}),
    "concat": ({"concat"}, {"concat", "concatenation", "qlinearconcat"}),
    "resize": ({"resize2d", "resize3d"},
               {"resize", "upsample", "resizebilinear", "resizenearestneighbor"}),
    "attention": ({"attention"}, {"attention", "multiheadattention", "scaleddotproductattention"}),
    "pad": ({"pad"}, {"pad", "padv2", "mirrorpad"}),
    "sum": ({"sum"}, {"sum", "reducesum"}),
    "reduce_max": ({"max"}, {"reducemax"}), "reduce_min": ({"min"}, {"reducemin"}),
    "argmax": ({"argmax"}, {"argmax"}), "argmin": ({"argmin"}, {"argmin"}),
    "transpose": ({"permute_dims"}, {"transpose"}),
}  # fmt: skip
# The same for operators without weights that are fused after another one.
_FUSED: dict[str, set[str]] = {
    "add": {"add", "sum", "biasadd"}, "subtract": {"sub"}, "multiply": {"mul"}, "divide": {"div"},
    "relu": {"relu", "clip"}, "maximum": {"max", "maximum", "clip", "relu", "relu6"},
    "minimum": {"min", "minimum", "clip", "relu6"}, "clip": {"clip", "relu6"},
    "sigmoid": {"sigmoid", "logistic"}, "tanh": {"tanh"}, "exp": {"exp"}, "log": {"log"}, "sqrt": {"sqrt"},
    "rsqrt": {"rsqrt"}, "erf": {"erf", "gelu"}, "gelu": {"gelu"}, "silu": {"silu", "swish"},
    "leakyrelu": {"leakyrelu"}, "prelu": {"prelu"}, "negative": {"neg"}, "abs": {"abs"}, "power": {"pow"},
    "where": {"where", "select"}, "astype": {"cast"}, "quantize": {"quantizelinear", "quantize"},
    "dequantize": {"dequantizelinear", "dequantize"},
}  # fmt: skip
_CONVERSIONS = {"astype", "quantize", "dequantize"}
# Nodes without an operator of their own: their constants are part of the node before.
_ABSORBED = {"batchnormalization", "identity", "dropout", "quantizelinear", "dequantizelinear", "quantize",
             "dequantize", "reshape", "flatten", "squeeze", "unsqueeze"}  # fmt: skip

# Kind and number of results.
_Key = tuple[str, "int | None"]


@dataclass(frozen=True)
class SourceNode:
    """A node of the model's file; `elements` of its first result, None where a size is not known."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    elements: int | None

    @property
    def key(self) -> str:
        """The operator in lower case and without "_", as the tables have it."""
        return self.op.lower().replace("_", "")


@dataclass(frozen=True)
class StepOrigin:
    """The nodes that a step computes, in order, and the tensor of the file that it writes."""

    nodes: tuple[str, ...]
    tensor: str


def source_nodes(path: Path) -> list[SourceNode]:
    """The nodes of an .onnx or .tflite file in its order; none for a file of another format."""
    readers = {".onnx": _onnx_nodes, ".tflite": _tflite_nodes}
    reader = readers.get(path.suffix.lower())
    return [] if reader is None else list(reader(path))


def _onnx_nodes(path: Path) -> Iterator[SourceNode]:
    import onnx

    from kiln.frontend.onnx.inference import infer_types

    model = onnx.load(path, load_external_data=False)
    try:
        graph = infer_types(model).graph
    except Exception:  # a model that only Kiln's own inference understands
        graph = model.graph
    elements_of = {}
    for value in (*graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            elements_of[value.name] = math.prod(d.dim_value for d in dims)
    for node in graph.node:
        outputs = tuple(name for name in node.output if name)
        name = node.name or (outputs[0] if outputs else node.op_type)
        first = elements_of.get(outputs[0]) if outputs else None
        yield SourceNode(name, node.op_type, tuple(filter(None, node.input)), outputs, first)


def _tflite_nodes(path: Path) -> Iterator[SourceNode]:
    import numpy as np
    import tflite

    from kiln.frontend.tflite.files import builtin_of, tensor_name

    model = tflite.Model.GetRootAsModel(path.read_bytes(), 0)
    graph = model.Subgraphs(0)

    def listed(indices: Any) -> list[int]:  # the reader gives 0 for a list that the file leaves out
        return [] if isinstance(indices, int) else [int(index) for index in indices if index >= 0]

    def names(indices: Any) -> tuple[str, ...]:
        return tuple(tensor_name(graph.Tensors(index)) for index in listed(indices))

    for position in range(graph.OperatorsLength()):
        operator = graph.Operators(position)
        code = model.OperatorCodes(operator.OpcodeIndex())
        custom = code.CustomCode()
        op = custom.decode() if custom else str(tflite.opcode2name(builtin_of(code)))
        outputs = names(operator.OutputsAsNumpy())
        output_numbers = listed(operator.OutputsAsNumpy())  # of some operators, such as CALL_ONCE, none
        shape = (
            np.atleast_1d(graph.Tensors(output_numbers[0]).ShapeAsNumpy()) if output_numbers else np.zeros(1)
        )
        elements = int(np.prod(shape, dtype=np.int64)) if (shape > 0).all() else None
        yield SourceNode(f"operator {position}", op, names(operator.InputsAsNumpy()), outputs, elements)


def origins(plan: Plan, steps: Sequence[PlannedStep], nodes: Sequence[SourceNode]) -> dict[int, StepOrigin]:
    """The origin of each step of a bucket, by its index; steps whose origin is not known are left out."""
    kernels = {kernel.symbol: kernel for kernel in plan.kernels}
    kinds = {key: kind for kind, (_, keys) in _KINDS.items() for key in keys}
    of_file = [(kinds[node.key], node.elements, node) for node in nodes if node.key in kinds]
    every: list[tuple[str, int | None, int]] = []
    last: list[tuple[str, int | None, int]] = []  # of several kernels of one group, the last
    for index, step in enumerate(steps):
        kind = _kind(kernels[step.kernel])
        if kind is not None:
            entry = (kind, _written(step, kernels[step.kernel]), index)
            if last and last[-1][2] == index - 1 and _continues(steps, index, kernels):
                last.pop()
            every.append(entry)
            last.append(entry)
    paired = dict(_pairs(every, of_file))
    nodes_paired = {id(node) for node in paired.values()}
    paired |= {
        i: node for i, node in _pairs(last, of_file) if i not in paired and id(node) not in nodes_paired
    }
    readers, data = _readers(nodes), {name for node in nodes for name in node.outputs}
    step_origins: dict[int, StepOrigin] = {}
    for index, node in sorted(paired.items(), key=lambda pair: pair[0]):
        step = steps[index]
        step_origins[index] = _with_fused(
            node, kernels[step.kernel], _data_read(step, kernels), readers, data
        )
    nodes_taken = {name for origin in step_origins.values() for name in origin.nodes}
    return {
        **_elementwise(steps, kernels, [n for n in nodes if n.name not in nodes_taken], step_origins),
        **step_origins,
    }


def _pairs(
    of_plan: Sequence[tuple[str, int | None, int]], of_file: Sequence[tuple[str, int | None, SourceNode]]
) -> Iterator[tuple[int, SourceNode]]:
    """Pairs of steps and nodes of equal kind and size, in order, if there are equally many of both.

    Sizes are compared only for kinds of which the file states all sizes, as it does not state dynamic ones.
    """
    not_known = {kind for kind, size, _ in (*of_plan, *of_file) if size is None}
    steps: dict[_Key, list[int]] = defaultdict(list)
    nodes: dict[_Key, list[SourceNode]] = defaultdict(list)
    for kind, size, index in of_plan:
        steps[kind, None if kind in not_known else size].append(index)
    for kind, size, node in of_file:
        nodes[kind, None if kind in not_known else size].append(node)
    for key, indices in steps.items():
        if len(nodes[key]) == len(indices):
            yield from zip(indices, nodes[key], strict=True)


def _elementwise(
    steps: Sequence[PlannedStep],
    kernels: Mapping[str, KernelRecord],
    nodes_left: Sequence[SourceNode],
    origins_found: Mapping[int, StepOrigin],
) -> dict[int, StepOrigin]:
    """Origins of the steps without an operator of _KINDS, among the nodes `nodes_left` by other steps."""
    of_plan: list[tuple[str, int | None, int]] = []
    names = {key: name for name, keys in _FUSED.items() if name not in _CONVERSIONS for key in keys}
    of_file = [(names[node.key], node.elements, node) for node in nodes_left if node.key in names]
    for index, step in enumerate(steps):
        kernel = kernels[step.kernel]
        if index in origins_found or _kind(kernel) is not None:
            continue
        known_operators = set(names.values())
        name = next((short(op.name) for op in kernel.ops if short(op.name) in known_operators), None)
        if name is not None:
            of_plan.append((name, _written(step, kernel), index))
    return {
        index: StepOrigin((node.name,), node.outputs[0] if node.outputs else "")
        for index, node in _pairs(of_plan, of_file)
    }


def short(name: str) -> str:
    """An operator's name without the prefixes of Relax, such as `conv2d` for `relax.nn.conv2d`."""
    return name.removeprefix("relax.").removeprefix("nn.").removeprefix("image.")


def _data_read(step: PlannedStep, kernels: Mapping[str, KernelRecord]) -> int:
    """Number of tensors, other than parameters, that a step reads.

    A padded tensor and the unpadded part inside it count as two, as their shapes differ, although they share
    memory.
    """
    declared = kernels[step.kernel].args
    return len(
        {
            (
                passed.at,
                passed.index if isinstance(passed, PortArgument) else passed.offset,
                str(passed.shape),
            )
            for passed, argument in zip(step.args, declared, strict=True)
            if argument.const and not isinstance(passed, ExpressionArgument) and passed.at != "params"
        }
    )


def _kind(kernel: KernelRecord) -> str | None:
    """The kind of the first operator of a kernel that has one."""
    for op in kernel.ops:
        name = short(op.name)
        for kind, (operators, _) in _KINDS.items():
            if name in operators:
                return kind
    return None


def _written(step: PlannedStep, kernel: KernelRecord) -> int | None:
    """Number of elements of the first tensor that a step writes; None where its size is dynamic."""
    for passed, declared in zip(step.args, kernel.args, strict=True):
        if not declared.const and not isinstance(passed, ExpressionArgument) and passed.shape is not None:
            is_static = all(isinstance(size, int) for size in passed.shape)
            return math.prod(int(str(size)) for size in passed.shape) if is_static else None
    return None


def _places(step: PlannedStep, kernel: KernelRecord, const: bool) -> set[tuple[str, int]]:
    return {
        (passed.at, passed.index if isinstance(passed, PortArgument) else passed.offset)
        for passed, declared in zip(step.args, kernel.args, strict=True)
        if declared.const is const and not isinstance(passed, ExpressionArgument)
    }


def _continues(steps: Sequence[PlannedStep], index: int, kernels: Mapping[str, KernelRecord]) -> bool:
    """Whether a step computes the next kernel of the previous step's group.

    Only the last kernel of a group writes the result.
    """
    earlier, step = kernels[steps[index - 1].kernel], kernels[steps[index].kernel]
    written = _places(steps[index - 1], earlier, const=False)
    read = _places(steps[index], step, const=True) | _places(steps[index], step, const=False)
    return earlier.symbol != step.symbol and earlier.ops == step.ops and bool(written & read)


def _readers(nodes: Iterable[SourceNode]) -> Mapping[str, Sequence[SourceNode]]:
    readers: dict[str, list[SourceNode]] = defaultdict(list)
    for node in nodes:
        for name in dict.fromkeys(node.inputs):
            readers[name].append(node)
    return readers


def _with_fused(
    first: SourceNode,
    kernel: KernelRecord,
    data_read: int,
    readers: Mapping[str, Sequence[SourceNode]],
    data: set[str],
) -> StepOrigin:
    """The origin of a step that begins with `first`: this node, and later nodes that the kernel computes too.

    `data_read`: number of tensors that the step reads; `data`: the tensors that nodes of the file compute.
    """
    operators_left = [short(op.name) for op in kernel.ops][1:]
    if len(first.inputs) > 2 and "add" in operators_left:  # its bias
        operators_left.remove("add")
    chain, node = [first], first
    while node.outputs and len(readers.get(node.outputs[0], ())) == 1:
        before, node = node, readers[node.outputs[0]][0]
        match = next((name for name in operators_left if node.key in _FUSED.get(name, ())), None)
        more = sum(name in data for name in node.inputs if name not in before.outputs)
        if match is not None and more < data_read:
            operators_left.remove(match)
            data_read -= more
        elif node.key not in _ABSORBED or not operators_left:
            break
        chain.append(node)
    while len(chain) > 1 and chain[-1].key in _ABSORBED:  # the next step may compute it
        chain.pop()
    outputs = chain[-1].outputs
    return StepOrigin(tuple(node.name for node in chain), outputs[0] if outputs else "")
