"""Moves the graphs of TFLite's IF, WHILE and CALL into the main graph of a file.

The operators of both graphs of an IF stand before the custom operator CHOOSE, which has the condition and the
results of both as inputs, and makes them branches of the plan (frontend/branches.py). The iterations of a
WHILE are unrolled where they are few, and LiteRT can count them, from the values that its condition reads.
Other loops become loops of the plan (frontend/loops.py): the operators of their graphs between the custom
operators LOOP_BEGIN and LOOP_END, which have the condition and the carried values as inputs. The converter
knows these three.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from enum import Enum
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import tflite

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.tflite.files import Kinds, indices, make_constant, packed, text_of, unpacked
from kiln.frontend.tflite.iteration_sizes import of_computed_size
from kiln.frontend.tflite.loop_count import iterations
from kiln.frontend.tflite.row_writes import replace_row_writes
from kiln.frontend.tflite.stablehlo_while import replace_stablehlo_while

VARIABLES = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE")
MOST_OPERATORS = 1 << 14  # in all iterations of unrolled loops
FEW_OPERATORS = 512  # loops of at most so many operators, in all iterations, are unrolled
CONTROL = ("IF", "WHILE", "CALL", "STABLEHLO_CASE", "STABLEHLO_COMPOSITE", "STABLEHLO_WHILE")
_ALL = "IF, WHILE, CALL, STABLEHLO_CASE or STABLEHLO_COMPOSITE"  # in errors
LOOP_BEGIN, LOOP_END, CHOOSE = "kiln.loop_begin", "kiln.loop_end", "kiln.choose"
OWN = (LOOP_BEGIN, LOOP_END, CHOOSE)


class Unrolling(Enum):
    """Which loops are unrolled, of those whose iterations LiteRT can count."""

    NONE = "none"
    SHORT = "short"
    ALL = "all"


def without_control_flow(
    path: Path, content: bytes, unrolling: Unrolling = Unrolling.ALL, selects: bool = False
) -> bytes:
    """The file `content` without the operators of CONTROL.

    `selects`: with SELECT_V2 in place of CHOOSE. Raises KilnError, naming the operator, where that fails.
    """
    schema, model = unpacked(path, content)
    kinds = Kinds(schema, model)
    if not any(kinds.of(op) in CONTROL for op in model.subgraphs[0].operators):
        return content
    replace_stablehlo_while(schema, model, kinds)
    flat = _FlatGraph(path, schema, model, kinds, unrolling, selects)
    flat.extend(model.subgraphs[0].operators, 0)
    graph = model.subgraphs[0]
    graph.operators = flat.operators
    graph.outputs = [flat.tensor_with_value_of(index) for index in indices(graph.outputs)]
    return packed(model)


def has_own_operators(content: bytes, kinds: Collection[str] = OWN) -> bool:
    """Whether a file has operators of `kinds`, which stand for loops and branches of the plan."""
    model = tflite.Model.GetRootAsModel(content, 0)
    codes = (model.OperatorCodes(index).CustomCode() for index in range(model.OperatorCodesLength()))
    return any((code or b"").decode(errors="replace") in kinds for code in codes)


def has_loops(content: bytes) -> bool:
    """Whether a file has loops of the plan."""
    return has_own_operators(content, (LOOP_BEGIN,))


def runnable(path: Path, content: bytes) -> bytes:
    """The file `content` with control flow that LiteRT has kernels of.

    Each STABLEHLO_WHILE is a WHILE, and a STABLEHLO_CASE is all of its branches and SELECT_V2.
    """
    schema, model = unpacked(path, content)
    kinds = Kinds(schema, model)
    if any(kinds.of(op) == "STABLEHLO_CASE" for graph in model.subgraphs for op in graph.operators or []):
        return without_control_flow(path, content, selects=True)
    replace_stablehlo_while(schema, model, kinds)
    return packed(model)


class _FlatGraph:
    """The operators of the main graph, with the operators of other graphs in place of IF and WHILE."""

    def __init__(
        self, path: Path, schema: Any, model: Any, kinds: Kinds, unrolling: Unrolling, selects: bool
    ) -> None:
        self._unrolling, self._selects = unrolling, selects
        self._path, self._schema, self._model, self._kinds = path, schema, model, kinds
        self._graph = model.subgraphs[0]
        self.operators: list[Any] = []
        self._replaced_by: dict[int, int] = {}  # result of a replaced operator → the tensor with this value
        self._loops = self._calls = 0
        # How many branches and loops of the plan the operators to add are in: such operators may not run, or
        # run several times.
        self._unsure = 0

    def tensor_with_value_of(self, index: int) -> int:
        """The tensor of the main graph that has the value of tensor `index`, which may be a removed one."""
        return self._replaced_by.get(index, index)

    def extend(self, operators: list[Any], depth: int) -> None:
        """Add operators of the main graph."""
        if depth > 16 or len(self.operators) > MOST_OPERATORS:
            raise KilnError(
                f"{self._path}: {_ALL}: nested more than 16 deep, or more than {MOST_OPERATORS} operators in "
                "all iterations: use a shorter loop"
            )
        for op in operators:
            op.inputs = [self.tensor_with_value_of(index) for index in indices(op.inputs)]
            kind = self._kinds.of(op)
            if self._unsure and kind in VARIABLES:
                raise self._refusal(
                    op,
                    "of a variable in a branch or a loop that depends on values of the run: read it before, "
                    "return the new value from it, and assign it after it",
                )
            if kind == "IF":
                self._if(op, depth)
            elif kind == "STABLEHLO_CASE":
                self._case(op, depth)
            elif kind == "WHILE":
                self._while(op, depth)
            elif kind in ("CALL", "STABLEHLO_COMPOSITE"):
                self._call(op, kind, depth)
            else:
                self.operators.append(op)

    def _refusal(self, op: Any, text: str) -> KilnError:
        return self._kinds.refusal(self._path, self._graph, op, text)

    def _inline(self, number: int, inputs: list[int], label: str, depth: int) -> list[int]:
        """Add the operators of graph `number`; returns its outputs as tensors of the main graph."""
        graphs = self._model.subgraphs
        graph = graphs[number] if 0 < number < len(graphs) else None
        if graph is None or len(indices(graph.inputs)) != len(inputs):
            raise KilnError(
                f"{self._path}: {label}: graph {number} is not in the file, or does not take {len(inputs)} "
                "inputs"
            )
        main_index_of = dict(zip(indices(graph.inputs), inputs, strict=True))
        for index, tensor in enumerate(graph.tensors):
            if tensor.isVariable:
                raise KilnError(
                    f"{self._path}: {_ALL}: tensor '{text_of(tensor.name)}' in one of its graphs is the "
                    "state of a recurrent operator: use recurrent operators only outside of it"
                )
            if index not in main_index_of:
                main_index_of[index] = len(self._graph.tensors)
                copied = copy.copy(tensor)
                copied.name = f"{label}/{text_of(tensor.name)}"
                self._graph.tensors.append(copied)
        added = []
        for op in graph.operators:
            copied = copy.copy(op)
            copied.inputs = [main_index_of[i] if i >= 0 else i for i in indices(op.inputs)]
            copied.outputs = [main_index_of[i] for i in indices(op.outputs)]
            added.append(copied)
        self.extend(added, depth + 1)
        return [self.tensor_with_value_of(main_index_of[index]) for index in indices(graph.outputs)]

    def _constant(self, index: int) -> Array | None:
        """The array of a tensor that the file holds."""
        return self._kinds.constant(self._graph.tensors[index])

    def _if(self, op: Any, depth: int) -> None:
        condition, *inputs = indices(op.inputs)
        options = op.builtinOptions
        sides = [int(options.thenSubgraphIndex), int(options.elseSubgraphIndex)]
        value = self._constant(condition)
        if value is not None:
            sides = sides[:1] if bool(value.reshape(-1)[0]) else sides[1:]
        self._unsure += len(sides) > 1
        results_of_sides = [self._inline(side, inputs, f"branch{side}", depth) for side in sides]
        self._unsure -= len(sides) > 1
        results = indices(op.outputs)
        if len(results_of_sides) == 1:
            self._replaced_by.update(zip(results, results_of_sides[0], strict=True))
            return
        for chosen in zip(results, *results_of_sides, strict=True):
            self._check_alike(op, chosen)
        self._choose(condition, results_of_sides[0], results_of_sides[1], results)

    def _choose(self, condition: int, first: list[int], second: list[int], results: list[int]) -> None:
        """Add the choice of `first`, where the condition is true, or `second`."""
        if not self._selects:
            self._custom(CHOOSE, [condition, *first, *second], results)
            return
        for result, *values in zip(results, first, second, strict=True):
            self._builtin("SELECT_V2", [condition, *values], result)

    def _check_alike(self, op: Any, results: Sequence[int]) -> None:
        """Raise KilnError unless the results of branches have one type and shape."""
        tensors = [self._graph.tensors[index] for index in results]
        if len({(tuple(indices(tensor.shape)), tensor.type) for tensor in tensors}) > 1:
            raise self._refusal(
                op,
                "its branches give different types or shapes, depending on a value of the run: pad the "
                "smaller result in the model",
            )

    def _builtin(self, name: str, inputs: list[int], output: int) -> None:
        """Add a builtin operator without options."""
        self.operators.append(self._kinds.operator(name, inputs, output))

    def _case(self, op: Any, depth: int) -> None:
        """Add all branches of a STABLEHLO_CASE; an index out of range chooses the last branch."""
        index, *inputs = indices(op.inputs)
        branches = [int(number) for number in indices(op.builtinOptions2.branchSubgraphIndices)]
        value = self._constant(index)
        if value is not None:
            position = int(value.reshape(-1)[0])
            branches = [branches[position] if 0 <= position < len(branches) else branches[-1]]
        self._unsure += len(branches) > 1
        results_of_branches = [self._inline(number, inputs, f"branch{number}", depth) for number in branches]
        self._unsure -= len(branches) > 1
        chosen, results = results_of_branches[-1], indices(op.outputs)
        for branch_number in reversed(range(len(results_of_branches) - 1)):
            is_this_branch, merged = self._equal(index, branch_number), []
            for tensors in zip(results, results_of_branches[branch_number], chosen, strict=True):
                self._check_alike(op, tensors)
                merged.append(self._like(tensors[0], f"case{branch_number}"))
            self._choose(is_this_branch, results_of_branches[branch_number], chosen, merged)
            chosen = merged
        self._replaced_by.update(zip(results, chosen, strict=True))

    def _like(self, index: int, label: str) -> int:
        """A new tensor of the type and shape of tensor `index`."""
        copied = copy.copy(self._graph.tensors[index])
        copied.name, copied.buffer = f"{label}/{text_of(copied.name)}", 0
        self._graph.tensors.append(copied)
        return len(self._graph.tensors) - 1

    def _equal(self, index: int, number: int) -> int:
        """A new tensor: whether the integer in tensor `index` is `number`."""
        limit, is_equal = self._like(index, f"number{number}"), self._like(index, f"is{number}")
        tensor = self._graph.tensors[limit]
        make_constant(self._schema, self._model, tensor, np.array(number, self._kinds.dtype(tensor)))
        self._graph.tensors[is_equal].type = self._schema.TensorType.BOOL
        self._builtin("EQUAL", [index, limit], is_equal)
        return is_equal

    def _while(self, op: Any, depth: int) -> None:
        body, carried = int(op.builtinOptions.bodySubgraphIndex), indices(op.inputs)
        count = None if self._unrolling is Unrolling.NONE else self._count(op, carried)
        operators = len(self._model.subgraphs[body].operators)
        if self._unrolling is Unrolling.SHORT and count is not None and count * operators > FEW_OPERATORS:
            count = None
        if count is None:
            self._unsure += 1
            self._plan_loop(op, depth)
            self._unsure -= 1
            return
        for number in range(count):
            carried = self._inline(body, carried, f"iteration{number}", depth)
        self._replaced_by.update(zip(indices(op.outputs), carried, strict=True))

    def _count(self, op: Any, carried: list[int]) -> int | None:
        """How many iterations a WHILE has, see `loop_count.iterations`."""
        first = [self._constant(index) for index in carried]
        return iterations(self._schema, self._model, op, first, lambda text: self._refusal(op, text))

    def _call(self, op: Any, kind: str, depth: int) -> None:
        """Put the graph of a CALL, or the decomposition of a STABLEHLO_COMPOSITE, in its place."""
        options = op.builtinOptions if kind == "CALL" else op.builtinOptions2
        number = options.subgraph if kind == "CALL" else options.decompositionSubgraphIndex
        self._calls += 1
        results_of_call = self._inline(int(number), indices(op.inputs), f"call{self._calls}", depth)
        self._replaced_by.update(zip(indices(op.outputs), results_of_call, strict=True))

    def _plan_loop(self, op: Any, depth: int) -> None:
        """Add a WHILE as a loop of the plan. Raises KilnError for a carried value that changes its shape."""
        condition, body = int(op.builtinOptions.condSubgraphIndex), int(op.builtinOptions.bodySubgraphIndex)
        graph = self._model.subgraphs[body]
        replace_row_writes(self._schema, self._kinds, graph)
        sized = of_computed_size(self._kinds, graph)
        if sized is not None:
            tensor = text_of(graph.tensors[indices(sized.outputs)[0]].name)
            raise self._refusal(
                op,
                f"in its iterations, {self._kinds.of(sized)} (output {tensor}) has a size that is computed "
                "there: give it one size, and write parts of it",
            )
        self._loops += 1
        label, first, results = f"loop{self._loops}", indices(op.inputs), indices(op.outputs)
        [before] = self._inline(condition, first, f"{label}/before", depth)
        # A value that the body passes on as it is needs no memory of the loop's own.
        changed = [new != old for new, old in zip(indices(graph.outputs), indices(graph.inputs), strict=True)]
        self._replaced_by.update((results[at], first[at]) for at in range(len(first)) if not changed[at])
        in_body = [
            self._like(value, label) if new else value for value, new in zip(first, changed, strict=True)
        ]
        in_iteration = list(compress(in_body, changed))
        self._custom(LOOP_BEGIN, [before, *compress(first, changed)], in_iteration)
        body_results = self._inline(body, in_body, f"{label}/body", depth)
        for position, pair in enumerate(zip(in_body, body_results, strict=True)):
            tensors = [self._graph.tensors[index] for index in pair]
            kinds = [f"{self._kinds.type_name(tensor)}{indices(tensor.shape)}" for tensor in tensors]
            if kinds[0] != kinds[1]:
                raise self._refusal(
                    op,
                    f"carried value {position} is {kinds[0]} before an iteration, {kinds[1]} after it, and "
                    "its iterations are counted when the model runs: make the value as large as it gets "
                    "before the loop, and write parts of it",
                )
        [after] = self._inline(condition, body_results, f"{label}/after", depth)
        self._custom(LOOP_END, [after, *compress(body_results, changed)], list(compress(results, changed)))

    def _custom(self, name: str, inputs: list[int], outputs: list[int]) -> None:
        """Add a custom operator."""
        codes = self._model.operatorCodes
        code = self._schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = self._schema.BuiltinOperator.CUSTOM
        code.customCode, code.version = name, 1
        operator = self._schema.OperatorT()
        operator.opcodeIndex, operator.inputs, operator.outputs = len(codes), inputs, outputs
        codes.append(code)
        self.operators.append(operator)
