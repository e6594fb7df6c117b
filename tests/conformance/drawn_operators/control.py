"""Graphs with branches, loops, sequences and functions of the file, drawn at random and nested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from .draw import Draw, Input, Maker, Node

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_ROW, _TOTALS = -1, -2  # float tensors of one axis, of any size and of as many elements as columns
_OWN = "own"  # the domain of functions of the file
_SEQUENCE_MAP = 17  # the first operator set with it


@dataclass
class _Program:
    """What all nested graphs of a file share: names, inputs, constants, functions, the number of columns.

    ONNX Runtime takes a size of a Loop's row that it does not know as 0 where there are no rows.
    """

    d: Draw
    columns: int
    count: int = 0
    inputs: list[Input] = field(default_factory=list)
    functions: dict[str, onnx.FunctionProto] = field(default_factory=dict)

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def given(self, value: Any, dtype: str, constant: bool) -> str:
        """A new input or constant of the file."""
        self.inputs.append(Input(np.asarray(value, dtype), constant))
        return f"x{len(self.inputs) - 1}"


class _Block:
    """A graph under construction: its nodes, and the names of what they may read, by kind.

    Matrices have the shape of the first input. columns: matrices of any number of rows.
    """

    def __init__(self, program: _Program, outer: _Block | None, depth: int, closed: bool = False) -> None:
        self.program, self.d, self.depth = program, program.d, depth
        self.nodes: list[onnx.NodeProto] = []
        self.matrices: list[str] = list(outer.matrices) if outer else []
        self.columns: list[str] = list(outer.columns) if outer else []
        self.closed = closed or (
            outer is not None and outer.closed
        )  # part of a function: no inputs, no calls

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        names = [self.program.name("t") for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, self.program.name("n"), **attributes))
        return names

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.op(kind, *inputs, **attributes)[0]

    def constant(self, value: Any, dtype: str = "float32") -> str:
        tensor = numpy_helper.from_array(np.asarray(value, dtype), "v")
        return self.one("Constant", value=tensor)

    def matrix(self) -> str:
        return str(self.d.pick(self.matrices[-6:]))

    def add(self) -> None:
        """A random statement."""
        choice: list[Callable[[], None]] = [self.unary, self.binary, self.binary, self.reduced]
        if not self.closed:
            choice.append(self.called)
        if self.depth > 0:
            choice += [self.branch, self.loop, self.loop, self.scan, self.sequence]
            choice += [self.mapped] if self.d.opset >= _SEQUENCE_MAP else []
        self.d.pick(choice)()

    def unary(self) -> None:
        kind = self.d.pick(("Tanh", "Neg", "Relu", "Abs", "Sigmoid"))
        self.matrices.append(self.one(kind, self.matrix()))

    def binary(self) -> None:
        kind = self.d.pick(("Add", "Sub", "Max", "Mul"))
        other = self.matrix() if self.d.chance(0.7) else self.constant(self.d.real(-1, 1))
        result = self.one(kind, self.matrix(), other)
        self.matrices.append(self.one("Tanh", result) if kind == "Mul" else result)

    def reduced(self) -> None:
        """A matrix plus the sums of the columns of another, of any number of rows."""
        source = self.d.pick(self.columns) if self.columns and self.d.chance(0.7) else self.matrix()
        sums = self.one("ReduceSum", source, self.constant([0], "int64"), keepdims=1)
        self.matrices.append(self.one("Tanh", self.one("Add", self.matrix(), sums)))

    def condition(self) -> str:
        """A truth value: of the file, an input, or computed."""
        form = self.d.pick(("computed", "computed", "constant", "input")[: 3 if self.closed else 4])
        if form == "computed":
            total = self.one("ReduceSum", self.matrix(), keepdims=0)
            return self.one(
                self.d.pick(("Less", "Greater")), total, self.constant(self.d.real(-3, 3) + 0.0123)
            )
        if form == "constant":
            return self.constant(self.d.chance(), "bool")
        return self.program.given(self.d.chance(), "bool", False)

    def inside(self, statements: int, matrices: Sequence[str] = ()) -> _Block:
        block = _Block(self.program, self, self.depth - 1)
        block.matrices += matrices
        for _ in range(statements):
            block.add()
        return block

    def branch(self) -> None:
        """An If: a matrix from each side, and sometimes another whose number of rows differs."""
        condition, more = self.condition(), self.d.chance(0.4)
        graphs = []
        for _ in range(2):
            block = self.inside(self.d.number(0, 2))
            results = [block.one("Identity", block.matrix())]
            if more:
                last = self.d.pick(("whole", "row", "none", "twice"))
                if last == "twice":
                    results.append(block.one("Concat", block.matrix(), block.matrix(), axis=0))
                else:
                    ends = block.constant([{"whole": 99, "row": 1, "none": 0}[last]], "int64")
                    zero = block.constant([0], "int64")
                    results.append(block.one("Slice", block.matrix(), zero, ends, zero))
            graphs.append(self.graph(block, [], [(name, FLOAT) for name in results]))
        results = self.op("If", condition, outputs=1 + more, then_branch=graphs[0], else_branch=graphs[1])
        self.matrices.append(results[0])
        self.columns += results[1:]

    @staticmethod
    def graph(
        block: _Block, inputs: Sequence[tuple[str, int]], results: Sequence[tuple[str, int]]
    ) -> onnx.GraphProto:
        shapes: dict[int, Any] = {FLOAT: (None, block.program.columns), INT64: (), BOOL: (), _ROW: (None,)}
        shapes[_TOTALS] = (block.program.columns,)
        ports = [
            [helper.make_tensor_value_info(name, max(kind, FLOAT), shapes[kind]) for name, kind in ports]
            for ports in (inputs, results)
        ]
        return helper.make_graph(block.nodes, block.program.name("g"), *ports)

    def loop(self) -> None:
        """A Loop: a trip count, a condition or both; carries a matrix and a number, and gives rows."""
        d, program = self.d, self.program
        trips = d.pick(("constant", "constant", "long", "none", "data")[: 4 if self.closed else 5])
        ends = d.pick(("never", "computed", "number")) if trips != "none" else "number"
        names = [program.name("b") for _ in range(4)]
        number, going, carried, counter = names
        block = self.inside(d.number(0, 2) if trips != "long" else 0, [carried])
        step = block.one("Cast", number, to=FLOAT)
        scaled = block.one("Mul", step, block.constant(0.03125))
        value = block.one(
            "Tanh", block.one("Add", block.one("Mul", block.matrix(), block.constant(0.5)), scaled)
        )
        following = block.one("Add", counter, block.constant(d.number(1, 3), "int64"))
        after = block.one("Identity", going)
        if ends == "number":
            after = block.one("Less", following, block.constant(d.number(0, 12), "int64"))
        elif ends == "computed":
            total = block.one("ReduceSum", value, keepdims=0)
            after = block.one("Less", total, block.constant(d.real(-4, 4) + 0.0123))
        results = [(after, BOOL), (value, FLOAT), (following, INT64)]
        rows = d.number(0, 2)
        for place in range(rows):
            row = block.one("Sub", value, block.matrix())
            if not place:
                row = block.one("ReduceSum", row, block.constant([0], "int64"), keepdims=0)
            results.append((row, FLOAT if place else _TOTALS))
        inputs = [(number, INT64), (going, BOOL), (carried, FLOAT), (counter, INT64)]
        body = self.graph(block, inputs, results)
        count = {"constant": d.number(0, 5), "long": d.number(60, 150), "data": d.number(0, 6)}.get(trips)
        trip = "" if count is None else self.constant(count, "int64")
        if trips == "data":
            trip = program.given(count, "int64", False)
        start = "" if d.chance() else self.constant(True, "bool")
        if ends != "never" and d.chance(0.2):
            start = self.condition()
        outputs = self.op(
            "Loop", trip, start, self.matrix(), self.constant(0, "int64"), outputs=2 + rows, body=body
        )
        self.matrices.append(outputs[0])
        if d.chance():
            scale = self.one("Mul", self.one("Cast", outputs[1], to=FLOAT), self.constant(0.01))
            self.matrices.append(self.one("Tanh", self.one("Add", self.matrix(), scale)))
        for place, rows_name in enumerate(outputs[2:]):
            axes = self.constant([0, 1] if place else [0], "int64")
            sums = self.one("ReduceSum", rows_name, axes, keepdims=0)
            self.matrices.append(self.one("Tanh", self.one("Add", self.matrix(), sums)))

    def scan(self) -> None:
        """A Scan over the rows or columns of a matrix, with a state."""
        d, program = self.d, self.program
        axis, forward, out_axis = d.pick((0, 1, -1)), d.number(0, 1), d.pick((0, 1, -1))
        state, row = program.name("b"), program.name("b")
        block = _Block(program, None, 0, self.closed)
        following = block.one("Tanh", block.one(d.pick(("Add", "Sub", "Max")), state, row))
        given = block.one(d.pick(("Neg", "Abs", "Identity")), following)
        body = self.graph(block, [(state, _ROW), (row, _ROW)], [(following, _ROW), (given, _ROW)])
        source = self.matrix()
        first = self.one("ReduceSum", source, self.constant([axis], "int64"), keepdims=0)
        last, rows = self.op(
            "Scan", first, source, outputs=2, body=body, num_scan_inputs=1, scan_input_axes=[axis],
            scan_input_directions=[forward], scan_output_axes=[out_axis],
            scan_output_directions=[d.number(0, 1)],
        )  # fmt: skip
        if axis % 2 == out_axis % 2:
            self.matrices.append(rows)
        else:
            self.matrices.append(self.one("Transpose", rows, perm=[1, 0]))
        widened = self.one("Unsqueeze", last, self.constant([axis], "int64"))
        self.matrices.append(self.one("Sub", self.matrix(), widened))

    def sequence(self) -> None:
        """Matrices in a sequence: inserted, erased, read at constant places, joined."""
        d = self.d
        count = d.number(1, 3)
        sequence = self.one("SequenceConstruct", *(self.matrix() for _ in range(count)))
        for _ in range(d.number(0, 2)):
            if count > 1 and d.chance(0.4):
                place = self.constant(d.number(-count, count - 1), "int64")
                sequence, count = self.one("SequenceErase", sequence, place), count - 1
            else:
                place = [self.constant(d.number(-count, count), "int64")] if d.chance(0.7) else []
                sequence, count = self.one("SequenceInsert", sequence, self.matrix(), *place), count + 1
        self.matrices.append(
            self.one("SequenceAt", sequence, self.constant(d.number(-count, count - 1), "int64"))
        )
        if d.chance():
            self.columns.append(self.one("ConcatFromSequence", sequence, axis=d.pick((0, -2))))
        else:
            whole = self.one("ConcatFromSequence", sequence, axis=d.pick((0, -3)), new_axis=1)
            sums = self.one("ReduceSum", whole, self.constant([0], "int64"), keepdims=0)
            self.matrices.append(self.one("Tanh", sums))

    def mapped(self) -> None:
        """A SequenceMap of matrices, with a tensor for all elements."""
        element, other = self.program.name("b"), self.program.name("b")
        block = _Block(self.program, None, 0, closed=True)  # ONNX Runtime calls no function in it
        block.matrices = [element, other]
        for _ in range(self.d.number(1, 2)):
            block.add()
        result = block.one("Identity", block.matrices[-1])
        body = self.graph(block, [(element, FLOAT), (other, FLOAT)], [(result, FLOAT)])
        sequence = self.one("SequenceConstruct", *(self.matrix() for _ in range(self.d.number(1, 3))))
        made = self.one("SequenceMap", sequence, self.matrix(), body=body)
        self.matrices.append(self.one("SequenceAt", made, self.constant(self.d.pick((0, -1)), "int64")))

    def called(self) -> None:
        """A call of a function of the file, whose attribute may be its default, and an input left out."""
        name = f"f{self.d.number(0, 2)}"
        if name not in self.program.functions:
            self.program.functions[name] = _function(self.program, name)
        attributes = {"slope": self.d.real(-0.5, 0.5)} if name == "f0" or self.d.chance() else {}
        inputs = [self.matrix(), self.matrix()]
        if name == "f0" and self.d.chance():
            inputs.append(self.constant(self.d.real(-0.5, 0.5)))
        self.matrices.append(self.one(name, *inputs, domain=_OWN, **attributes))


def _function(program: _Program, name: str) -> onnx.FunctionProto:
    """A function of two matrices, f0 also of a limit that may be left out.

    The attribute `slope` has a default but in f0, and is used in a nested graph too. f2 calls f1.
    """
    block = _Block(program, None, 1, closed=True)
    block.matrices = ["a", "b"]
    if name == "f2":
        if "f1" not in program.functions:
            program.functions["f1"] = _function(program, "f1")
        inner = helper.make_node("f1", ["b", "a"], ["c"], domain=_OWN)
        inner.attribute.append(_reference("slope"))
        block.nodes.append(inner)
        block.matrices.append("c")
    leaky = helper.make_node("LeakyRelu", [block.matrix()], ["l"])
    leaky.attribute.append(_reference("slope", "alpha"))
    block.nodes.append(leaky)
    block.matrices.append("l")
    if name == "f0":
        block.matrices.append(block.one("Clip", block.matrix(), "low"))
    elif program.d.chance():
        block.matrices.append(_leaky_branch(block))
    for _ in range(program.d.number(0, 2)):
        program.d.pick((block.unary, block.binary, block.reduced))()
    if name != "f0":
        block.branch()
    block.nodes.append(helper.make_node("Add", ["l", block.matrices[-1]], ["y"]))
    return helper.make_function(
        _OWN, name, ["a", "b", "low"] if name == "f0" else ["a", "b"], ["y"], block.nodes,
        [helper.make_opsetid("", program.d.opset), helper.make_opsetid(_OWN, 1)],
        ["slope"] if name == "f0" else [],
        [] if name == "f0" else [helper.make_attribute("slope", 0.25)],
    )  # fmt: skip


def _leaky_branch(block: _Block) -> str:
    """An If whose branches read the attribute of the function."""
    graphs = []
    for _ in range(2):
        side = block.inside(0)
        result = side.one("LeakyRelu", side.matrix())
        side.nodes[-1].attribute.append(_reference("slope", "alpha"))
        graphs.append(block.graph(side, [], [(result, FLOAT)]))
    return block.one("If", block.condition(), then_branch=graphs[0], else_branch=graphs[1])


def _reference(name: str, attribute: str = "") -> AttributeProto:
    return AttributeProto(name=attribute or name, ref_attr_name=name, type=AttributeProto.FLOAT)


def control(d: Draw) -> Node:
    """A graph of three to six statements."""
    d.opset = d.number(13, 22)
    shape = (d.size(1, 4), d.number(1, 4))
    program = _Program(d, shape[1])
    program.inputs = [Input(d.values(shape, "float32", 0.7), False) for _ in range(2)]
    block = _Block(program, None, 2)
    block.matrices = ["x0", "x1"]
    for _ in range(d.number(3, 6)):
        block.add()
    results = list(dict.fromkeys([*block.matrices[-2:], *block.columns[-1:]]))
    node = Node("Control", program.inputs, {}, len(results), d.opset)
    node.nodes, node.functions = block.nodes, list(program.functions.values())
    node.results = results
    return node


MAKERS: dict[str, Maker] = {"Control": control}
