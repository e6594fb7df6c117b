"""Cuts an ONNX model that fails to the smallest part found that still fails, for a bug report.

1. The failure is a tensor beyond its limit, or an error of the build. For an error, the first node is
searched, by bisection over the order of execution, whose results cannot be built. 2. The part begins with
that node alone, and grows by the nodes before it, 1, 2, 4, …, until it fails as the whole does. A tensor
that enters the part becomes an input, with the values of the reference.

Each trial is a build of its own below build/.copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from kiln.arrays import Array
from kiln.command_line.answer import error_of
from kiln.command_line.build import COPIES, build_copy
from kiln.command_line.compare.part_keys import keys_of_part, write_keys
from kiln.command_line.compare.run import Compared, WrongInputsError, compare_model, configuration_of
from kiln.command_line.model_files import graph_of
from kiln.command_line.outputs import files_of, onnx_file, writable
from kiln.command_line.running import Destination
from kiln.config import Model, load_model
from kiln.device.bundle import open_bundle
from kiln.errors import KilnError
from kiln.files import write_together
from kiln.frontend.onnx.order import reads
from kiln.frontend.onnx.value_types import with_value_types
from kiln.scratch import scratch_folder
from kiln.sources.npy import load_npz

_WORD = re.compile(r"(?<![\w'./])[A-Za-z]{2,}(?![\w'./])")  # no part of a quoted name or a path


@dataclass(frozen=True)
class Reduced:
    """The part that fails: its file, the file of its inputs if values matter, and the failure.

    `nodes` is the number of its nodes, `of_nodes` that of the whole model.
    """

    model: Path
    inputs: Path | None
    nodes: int
    of_nodes: int
    failure: str


@dataclass(frozen=True)
class _Trials:
    """Builds and runs parts of `model` at `destination`, with the `options` of a build.

    `left_out`: keys of the model that parts do not get.
    """

    model: Model
    destination: Destination
    options: Mapping[str, str]
    left_out: Collection[str] = ()

    def for_failure(self, failure: str) -> _Trials:
        """The trials of parts for a `failure`: the key `quantised` stays only where it is what fails.

        A part may have no quantised tensor, or floats that the whole model computes on integers.
        """
        return self if "quantised: strict" in failure else replace(self, left_out=("quantised",))

    def configured(self, part: Path) -> str:
        """The file to build for a part: itself, or a YAML file with the model's keys that apply to it."""
        graph = onnx.load(str(part), load_external_data=False)
        return str(write_keys(keys_of_part(self.model, graph, self.left_out), part))

    def compare(self, model: str, inputs: Path | None) -> Compared:
        """Compare the model with its reference, tensor by tensor; see `compare_model`."""
        return compare_model(model, self.destination, inputs, **self.options)


class Parts:
    """Cuts parts of a model that end in given nodes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = with_value_types(model)
        graph = self._model.graph
        self.nodes = list(graph.node)
        self._types = {info.name: info for info in [*graph.value_info, *graph.input, *graph.output]}
        self._constants = {tensor.name for tensor in graph.initializer}
        self._constants |= {tensor.values.name for tensor in graph.sparse_initializer}
        self._maker = {name: number for number, node in enumerate(self.nodes) for name in node.output if name}
        known = {*self._maker, *self._constants, *(info.name for info in graph.input)}
        # Graphs nested in a node read tensors of this one, besides their own.
        self._reads = [
            list(dict.fromkeys([*node.input, *sorted(reads(node) & known - set(node.input))]))
            for node in self.nodes
        ]
        self._varying = {info.name for info in graph.input} - self._constants
        for node, names in zip(self.nodes, self._reads, strict=True):
            if self._varying & set(names):
                self._varying.update(node.output)

    def before(self, last: int, count: int) -> list[int]:
        """Numbers of `count` nodes that the node `last` depends on, itself among them, nearest first."""
        chosen, queue = [last], [last]
        while queue and len(chosen) < count:
            for name in self._reads[queue.pop(0)]:
                maker = self._maker.get(name)
                if maker is not None and maker not in chosen and len(chosen) < count:
                    chosen.append(maker)
                    queue.append(maker)
        return sorted(chosen)

    def cut(self, numbers: Sequence[int]) -> tuple[onnx.ModelProto, list[str]] | None:
        """The part of these nodes, and the tensors that enter it; None if the type of one is not known.

        Results that no other node of the part reads become outputs.
        """
        produced = {name for number in numbers for name in self.nodes[number].output if name}
        read = dict.fromkeys(
            name
            for number in numbers
            for name in self._reads[number]
            if name and name not in produced and name not in self._constants
        )
        used = {name for number in numbers for name in self._reads[number]}
        outputs = sorted(
            (produced - used | set(self.nodes[numbers[-1]].output)) & self._types.keys() & self._varying
        )
        if not outputs or not read.keys() <= self._types.keys():
            return None
        return self._part(numbers, list(read), outputs, used), list(read)

    def _part(
        self, numbers: Sequence[int], inputs: Sequence[str], outputs: Sequence[str], used: Collection[str]
    ) -> onnx.ModelProto:
        """A model of the nodes `numbers`; `used`: the tensors that they read."""
        model, whole = self._model, self._model.graph
        part = onnx.ModelProto(
            ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions
        )
        graph = part.graph
        graph.name = whole.name or "part"
        graph.node.extend(self.nodes[number] for number in sorted(numbers))
        graph.input.extend(self._types[name] for name in inputs)
        graph.output.extend(self._types[name] for name in outputs)
        graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name in used)
        graph.sparse_initializer.extend(
            tensor for tensor in whole.sparse_initializer if tensor.values.name in used
        )
        inner = {name for node in graph.node for name in node.output} - set(outputs)
        graph.value_info.extend(info for info in whole.value_info if info.name in inner)
        return part


def reduce_model(
    name: str, destination: Destination, inputs: Path | None, out: Path, **options: str
) -> Reduced:
    """Write the smallest failing part of the model `name` to `out`, and its inputs next to it.

    options: of the build, such as byoc. Raises KilnError where nothing fails.
    """
    model = load_model(name)
    onnx_file(out, ".npz with the inputs", *files_of(name, model))
    writable("out", out.with_suffix(".npz"), inputs)
    if inputs is not None:
        load_npz(inputs)  # a damaged file is not a fault of the model
    with scratch_folder("reduce") as folder:
        original = model
        model, source = graph_of(model, Path(folder), "reduce", (".onnx",))
        if model is not original:  # of PyTorch, which is converted once
            name = str(configuration_of(model, source, model.name, None, Path(folder)))
        parts = Parts(_load(source))
        trial = Path(folder, f"{out.stem}.onnx")
        reduced, trials = _reduce_to_part(parts, name, _Trials(model, destination, options), inputs, trial)
        inputs_file = None if reduced.inputs is None else out.with_suffix(".npz")
        files: dict[Path, bytes | str] = {}
        if reduced.inputs is not None and inputs_file is not None:
            files[inputs_file] = reduced.inputs.read_bytes()
        write_together({**files, out: trial.read_bytes()})
        return replace(
            reduced, model=Path(trials.configured(out)), inputs=inputs_file,
            failure=reduced.failure.replace(str(trial), str(out)),
        )  # fmt: skip


def _load(source: Path) -> onnx.ModelProto:
    try:
        return onnx.load(str(source))
    except Exception as error:  # protobuf and onnx raise exceptions of their own classes
        raise KilnError(f"{source}: not a valid ONNX model: {error}") from error


def _reduce_to_part(
    parts: Parts, name: str, trials: _Trials, inputs: Path | None, out: Path
) -> tuple[Reduced, _Trials]:
    """The smallest failing part, with the files `out` and `out` with the suffix .npz; and its trials."""
    try:
        compared = trials.compare(name, inputs)
    except WrongInputsError:
        raise
    except KilnError as error:
        _refuse_other_faults(error)
        trials = trials.for_failure(str(error))
        return _reduce_error(parts, trials, str(error), out), trials
    culprit = compared.fault
    if culprit is None:
        raise KilnError(
            f"model '{compared.model}': all its tensors are within their limits on {compared.target}"
        )
    last = next(number for number, node in enumerate(parts.nodes) if culprit.probe.tensor in node.output)
    values = _reference_values(compared.model, compared.target, culprit.vector)
    trials = trials.for_failure("")

    def fails(path: Path, entering: Sequence[str]) -> str:
        if not set(entering) <= values.keys():
            return ""
        inputs_file = path.with_suffix(".npz")
        np.savez(inputs_file, **{tensor: values[tensor] for tensor in entering})  # type: ignore[arg-type]
        try:
            at_fault = trials.compare(trials.configured(path), inputs_file).fault
        except KilnError as error:  # of the part alone, such as no weights for the key `weights`
            _refuse_other_faults(error)
            return ""
        return "" if at_fault is None else f"tensor {at_fault.probe.tensor}: {at_fault.difference.detail}"

    reduced = _grow(parts, last, fails, out)
    return Reduced(out, out.with_suffix(".npz"), reduced[0], len(parts.nodes), reduced[1]), trials


def _reduce_error(parts: Parts, trials: _Trials, message: str, out: Path) -> Reduced:
    """The smallest part whose build ends with an error."""

    def fails(path: Path, entering: Sequence[str]) -> str:
        try:
            build_copy(trials.configured(path), trials.destination.named, **trials.options)
        except KilnError as error:
            _refuse_other_faults(error)
            return str(error) if _same_kind(str(error), message) else ""
        return ""

    low, high = 0, len(parts.nodes) - 1  # the results of node `high` cannot be built
    while low < high:
        middle = (low + high) // 2
        failure = _try(parts, range(middle + 1), fails, out)
        low, high = (low, middle) if failure else (middle + 1, high)
    count, failure = _grow(parts, high, fails, out)
    return Reduced(out, None, count, len(parts.nodes), failure or message)


def _refuse_other_faults(error: KilnError) -> None:
    """Raise `error` again where it is the machine's, such as a full disk, and says nothing of the model."""
    if error_of(str(error)).code in ("system", "interrupted", "not-installed"):
        raise error


def _same_kind(error: str, earlier: str) -> bool:
    """Whether two errors of builds are of one kind: most of their words agree, without names and numbers."""
    first, second = (set(_WORD.findall(text)) for text in (error, earlier))
    return 2 * len(first & second) >= len(first | second)


def _grow(parts: Parts, last: int, fails: Callable[[Path, Sequence[str]], str], out: Path) -> tuple[int, str]:
    """The least number of nodes up to `last` found that fail, and how; they are written to `out`.

    The number is doubled until the part fails, then searched by bisection. Raises KilnError if no part fails.
    """
    low, high, failure = 0, 1, ""  # no part of `low` nodes fails
    while not failure:
        numbers = parts.before(last, high)
        if len(numbers) == low:
            raise KilnError(
                "the failure does not appear in any part of the model, only in the whole: "
                "report it with the whole model"
            )
        failure = _try(parts, numbers, fails, out)
        low, high = (low, len(numbers)) if failure else (len(numbers), 2 * high)
    written = smallest = numbers
    while low + 1 < high:
        middle = (low + high) // 2
        written = parts.before(last, middle)
        failure_there = _try(parts, written, fails, out)
        if failure_there:
            high, failure, smallest = middle, failure_there, written
        else:
            low = middle
    if written != smallest:  # the last trial did not fail
        failure = _try(parts, smallest, fails, out) or failure
    return len(smallest), failure


def _try(parts: Parts, numbers: Sequence[int], fails: Callable[[Path, Sequence[str]], str], out: Path) -> str:
    """The failure of a part, which is written to `out`; empty if it does not fail or cannot be cut."""
    part = parts.cut(numbers)
    if part is None:
        return ""
    onnx.save(part[0], str(out))
    return fails(out, part[1])


def _reference_values(model: str, target: str, vector: str) -> Mapping[str, Array]:
    """Every tensor of the reference in the golden vector `vector`, by name; the bundle has all as outputs."""
    bundle = open_bundle(COPIES / target / f"{model}_probed")
    vector_values = next(candidate for candidate in bundle.vectors() if candidate.name == vector)
    entries = bundle.golden().vectors[0].inputs
    inputs = {entry.name: value for entry, value in zip(entries, vector_values.inputs, strict=True)}
    names = [entry.name for entry in vector_values.output_entries]
    return {**inputs, **dict(zip(names, vector_values.outputs, strict=True))}
