"""Loop and Scan as a loop of the plan: the body is converted once, see frontend/loops.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from kiln.extents import Extent, shape_of
from kiln.frontend import loops
from kiln.frontend.counted.sizes import after_counting, counted
from kiln.frontend.onnx import order
from kiln.frontend.onnx.node import as_tensor
from kiln.frontend.onnx.value import Value

op = relax.op


# Loops with at most so many nodes in all iterations are unrolled: constants of an iteration are then folded.
MOST_UNROLLED = 512
# Iterations of a loop that is unrolled: one with rows as results, if its condition turns out to be known.
MOST_ITERATIONS = 1024


def loop(control: Any, nodes: int) -> bool:
    """Convert the Loop of `control` as a loop of the plan; returns False if it is to be unrolled.

    `nodes`: the number of nodes of its body. Raises ValueError for a Loop that the plan cannot express.
    """
    node, body = control.node, control.attributes["body"]
    name, going, *carried = [*node.input, "", ""][: max(2, len(node.input))]
    count = _trip_count(control, name)
    if isinstance(count, int) and count * max(1, nodes) <= MOST_UNROLLED:
        return False
    outputs = list(node.output)
    condition = not _always_true(body)
    first = control.constant(going) if going else np.array(True)
    if first is not None and not bool(first.reshape(-1)[0]):
        return False
    scanned = outputs[len(carried) :]
    if any(scanned) and condition and isinstance(count, int) and count <= MOST_ITERATIONS:
        return False  # perhaps the condition is known when iterations are unrolled
    _convert_loop(control, count, condition, first)
    return True


def open_loop(control: Any) -> None:
    """Convert the Loop of `control`, whose condition only the run knows, as a loop of the plan."""
    name, going = [*control.node.input, "", ""][:2]
    first = control.constant(going) if going else np.array(True)
    _convert_loop(control, _trip_count(control, name), not _always_true(control.attributes["body"]), first)


def _convert_loop(control: Any, count: Any, condition: bool, first: Any) -> None:
    """Convert the Loop; `first`: the condition of the first iteration, None where only the run knows it."""
    node, body = control.node, control.attributes["body"]
    going, *carried = [*node.input[1:], ""][: max(1, len(node.input) - 1)]
    outputs = list(node.output)
    scanned = outputs[len(carried) :]
    fixed = not condition and first is not None and (isinstance(count, int) or _is_size(count))
    plan_loop = PlanLoop(
        control, body, carried, count, None if first is not None else control.host._tensor(going), condition,
        True, (), [LoopRows(name, 0, False) for name in scanned], outputs, any(scanned) and not fixed,
    )  # fmt: skip
    plan_loop.convert()


def scan(control: Any, sizes: Sequence[Extent], nodes: int) -> int | None:
    """Convert the Scan of `control` as a loop of the plan; returns the steps if it is to be unrolled.

    `sizes`: the number of steps of each sequence; `nodes`: the number of nodes of the body. Raises
    ValueError where the sequences differ in steps.
    """
    node, body = control.node, control.attributes["body"]
    symbols, length = control.host._symbols, sizes[0]
    if not all(symbols.equal(size, length) for size in sizes):
        sizes_text = ", ".join(map(symbols.shown, sizes))
        raise ValueError(f"its sequences have {sizes_text} steps: allowed is one number for all")
    if isinstance(length, int) and 0 < length * max(1, nodes) <= MOST_UNROLLED:
        return length
    inputs = len(sizes)
    states = list(node.input[: len(node.input) - inputs])
    sequences, outputs = list(node.input[len(states) :]), list(node.output)
    count = len(outputs) - len(states)
    read = zip(
        sequences, control.list_of("scan_input_axes", inputs),
        control.list_of("scan_input_directions", inputs), strict=True,
    )  # fmt: skip
    written = zip(
        outputs[len(states) :], control.list_of("scan_output_axes", count),
        control.list_of("scan_output_directions", count), strict=True,
    )  # fmt: skip
    ranks = [len(shape_of(control.host._tensor(name))) for name in sequences]
    reads = [
        LoopRows(name, axis % rank, bool(back)) for (name, axis, back), rank in zip(read, ranks, strict=True)
    ]
    writes = [LoopRows(name, axis, bool(back)) for name, axis, back in written]
    PlanLoop(control, body, states, length, read=reads, written=writes, outputs=outputs).convert()
    return None


def _trip_count(control: Any, name: str) -> Any:
    """The greatest number of iterations: an int, an extent, an int64 tensor; None: no limit."""
    if not name:
        return None
    constant = control.constant(name)
    if constant is not None:
        count = max(0, int(constant.reshape(-1)[0]))
        return None if count > 1 << 40 else count
    value = control.host._values.get(name)
    if value is not None:
        (size,) = value.extents()
        return control.host._symbols.simplify(size)
    tensor = control.host._tensor(name)
    if any(size != 1 for size in shape_of(tensor)):
        raise ValueError(f"its trip count '{name}' has the shape {shape_of(tensor)}, allowed: one element")
    return tensor


def _is_size(count: Any) -> bool:
    """Whether the number of iterations is an expression of dimensions."""
    return count is not None and not isinstance(getattr(count, "ty", None), relax.TensorType)


def _always_true(body: onnx.GraphProto) -> bool:
    """Whether the condition that the body of a Loop returns is the one that it reads, or constant true."""
    name = body.output[0].name
    producers = {output: node for node in body.node for output in node.output}
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    if name == body.input[1].name:
        return True
    for weight in body.initializer:
        if weight.name == name:
            return bool(numpy_helper.to_array(weight).reshape(-1)[0])
    node = producers.get(name)
    if node is None or node.op_type != "Constant" or not node.attribute[0].HasField("t"):
        return False
    return bool(numpy_helper.to_array(node.attribute[0].t).reshape(-1)[0])


@dataclass(frozen=True)
class LoopRows:
    """A tensor of which each iteration of a loop reads or writes one row along `axis`.

    `backwards`: from the last row on.
    """

    name: str
    axis: int
    backwards: bool


@dataclass
class PlanLoop:
    """A loop of the importer `control` (control.py), with graph `body`.

    `count`: the greatest number of iterations, an int, an extent or an int64 tensor; None: no limit.
    `going`: a tensor, the condition of the first iteration; None: it is true. `condition`: whether the
    first result of the body is the condition of the next iteration. `numbered`: whether the first inputs of
    the body are the iteration's number and condition. `outputs`: the outputs of the node. `counted`: whether
    only the run knows the number of rows.
    """

    control: Any
    body: onnx.GraphProto
    carried: Sequence[str]
    count: Any = None
    going: Any = None
    condition: bool = False
    numbered: bool = False
    read: Sequence[LoopRows] = ()
    written: Sequence[LoopRows] = ()
    outputs: Sequence[str] = ()
    counted: bool = False
    limit: Any = field(default=None, init=False)
    most: Any = field(default=None, init=False)  # rows, where they are counted

    def convert(self) -> None:
        """Bind the node's outputs. Raises ValueError for a loop that the plan cannot express."""
        host = self.control.host
        emit = host.bb.emit
        host.loops = number = getattr(host, "loops", 0) + 1
        outer: list[Any] = getattr(host, "loop_counters", [])
        if self.count is None and not self.condition:
            raise ValueError("it has neither a trip count nor a condition that ends it")
        self._bind_outer()
        self.limit = None if self.count is None else self._int64_count(self.count)
        if self.counted:
            self.most = self._most_rows(bool(outer))
        zero = relax.const(np.zeros(1, np.int64), "int64")
        first = [*self._start_values(zero, self.going), *(host._tensor(name) for name in self.carried)]
        begun = emit(loops.begin(number, first, outer))
        values = [emit(relax.TupleGetItem(begun, index)) for index in range(len(first))]
        counter, lead = values[1], len(first) - len(self.carried)
        host.loop_counters = [*outer, counter]
        try:
            outputs = self.control.inline(
                self.body, f"{self.control.where}/body/", self._inputs(values, lead)
            )
        finally:
            host.loop_counters = outer
        after = emit(op.add(counter, relax.const(1, "int64")))
        flag = host._tensor(outputs[0]) if self.condition else None
        outputs = outputs[1:] if self.numbered else outputs
        count = len(self.carried)
        next_values = self._start_values(after, flag)
        next_values += [
            self._next_carried(name, old, index)
            for index, (name, old) in enumerate(zip(outputs, values[lead:], strict=False))
        ]
        rows = [
            self._write_row(rows_written, name, counter)
            for rows_written, name in zip(self.written, outputs[count:], strict=True)
        ]
        ended = emit(loops.end(number, next_values, rows))
        results = [emit(relax.TupleGetItem(ended, lead + index)) for index in range(count + len(rows))]
        if self.counted:
            results[count:] = self._cut_to_iterations(ended, results[count:])
            # A run whose rows nothing reads must fail, too, where the loop ended for lack of memory.
            results[:count] = [emit(after_counting(value, results[count:])) for value in results[:count]]
        for name, result in zip(self.outputs, results, strict=False):
            if name:
                self.control.bind(name, result)

    def _bind_outer(self) -> None:
        """Bind tensors of the outer graph that the body reads: else they are computed in each iteration."""
        host = self.control.host
        for name in sorted(order.reads(self.control.node)):
            if isinstance(host._nodes.get(name), relax.Call):
                host._nodes[name] = host.bb.emit(host._nodes[name])

    def _most_rows(self, nested: bool) -> Extent:
        """The greatest number of rows. Raises ValueError without a bound, and in a loop."""
        symbols, name = self.control.host._symbols, next(rows.name for rows in self.written if rows.name)
        if nested:
            raise ValueError(
                f"the size of output '{name}' is computed when the model runs, in a loop: allowed outside of "
                "loops; write rows into a carried tensor of a fixed size instead"
            )
        is_known = isinstance(self.count, int) or _is_size(self.count)
        most: Extent = symbols.most_counted(name, self.count if is_known else None)
        return most

    def _start_values(self, counter: Any, flag: Any) -> list[Any]:
        """The first values of an iteration: whether it runs, and its number `counter`.

        With counted rows also whether it would run if there were memory for its rows.
        """
        goes = self._runs(counter, flag)
        if not self.counted:
            return [goes, counter]
        emit = self.control.host.bb.emit
        has_room = emit(op.less(counter, self._int64_count(self.most)))
        return [emit(op.logical_and(goes, has_room)), counter, goes]

    def _cut_to_iterations(self, ended: Any, rows: Sequence[Any]) -> list[Any]:
        """`rows` with as many rows as there were iterations; a run with more ends with KILN_TOO_MANY."""
        builder = self.control.host.bb
        counter, goes = (builder.emit(relax.TupleGetItem(ended, index)) for index in (1, 2))
        one_more = builder.emit(op.add(counter, relax.const(np.full(1, 1, np.int64), "int64")))
        number = builder.emit(op.where(goes, one_more, counter))
        name = next(written.name for written in self.written if written.name)
        return counted(builder, self.control.host._symbols, name, number, rows, self.most)

    def _int64_count(self, count: Any) -> Any:
        """The number of iterations as an int64 tensor of one element."""
        emit = self.control.host.bb.emit
        if isinstance(count, int):
            return relax.const(np.full(1, count, np.int64), "int64")
        if isinstance(count, relax.Expr) and isinstance(count.ty, relax.TensorType):
            integer = count if str(count.ty.dtype) == "int64" else emit(op.astype(count, "int64"))
        else:
            integer = as_tensor(Value(np.array([count], object), "int64"))
        return emit(op.reshape(integer, [1]))

    def _runs(self, counter: Any, flag: Any) -> Any:
        """Whether iteration `counter` runs."""
        emit = self.control.host.bb.emit
        if flag is not None:
            flag = emit(op.reshape(flag, [1]))
        if self.limit is None:
            return relax.const(np.ones(1, bool), "bool") if flag is None else flag
        inside = emit(op.less(counter, self.limit))
        return inside if flag is None else emit(op.logical_and(inside, flag))

    def _inputs(self, values: Sequence[Any], lead: int) -> Mapping[str, str]:
        """The tensors of the body's inputs by their names in the body; carried values begin at `lead`."""
        control = self.control
        tensors = []
        if self.numbered:
            shape = relax.ShapeExpr(
                [int(dim.dim_value) for dim in self.body.input[0].type.tensor_type.shape.dim]
            )
            iteration = op.reshape(values[1], shape)
            tensors.append(control.bind(f"{control.where}/iteration", iteration))
            tensors.append(control.set(f"{control.where}/going", np.array(True)))
        for index, value in enumerate(values[lead:]):
            tensors.append(control.bind(f"{control.where}/carried{index}", value))
        for index, rows in enumerate(self.read):
            tensors.append(control.bind(f"{control.where}/row{index}", self._read_row(rows, values[1])))
        return dict(zip([value.name for value in self.body.input], tensors, strict=True))

    def _read_row(self, rows: LoopRows, counter: Any) -> Any:
        """The row of a sequence that an iteration reads."""
        emit = self.control.host.bb.emit
        source = self.control.host._tensor(rows.name)
        position = counter
        if rows.backwards:
            last = emit(op.subtract(self.limit, relax.const(1, "int64")))
            position = emit(op.subtract(last, counter))
        return op.squeeze(emit(op.take(source, position, rows.axis)), [rows.axis])

    def _next_carried(self, name: str, old: Any, number: int) -> Any:
        """Carried value `name` of the next iteration. Raises ValueError if its type is not that of `old`."""
        host = self.control.host
        new = host._tensor(name)
        sizes = shape_of(old), shape_of(new)
        same_kind = str(new.ty.dtype) == str(old.ty.dtype) and len(sizes[0]) == len(sizes[1])
        if not same_kind or not all(host._symbols.equal(a, b) for a, b in zip(*sizes, strict=True)):
            types = [
                f"{expr.ty.dtype}[{', '.join(map(host._symbols.shown, size))}]"
                for expr, size in zip((old, new), sizes, strict=True)
            ]
            raise ValueError(
                f"carried value {number} ('{self.body.output[self.numbered + number].name}' of its body) is "
                f"{types[0]} before an iteration and {types[1]} after it: allowed is one type and one shape; "
                "make it as large as it gets before the loop, and write parts of it"
            )
        return host.bb.emit(op.reshape(new, old.ty.shape)) if str(new.ty.shape) != str(old.ty.shape) else new

    def _write_row(self, written: LoopRows, name: str, counter: Any) -> Any:
        """The output `written` after iteration `counter`, which writes the row `name`."""
        value = self.control.host._tensor(name)
        axis = written.axis + len(value.ty.shape) + 1 if written.axis < 0 else written.axis
        count: Extent = self.most if self.counted else self.count
        return self.control.host.bb.emit(loops.row(value, counter, count, axis, written.backwards))
