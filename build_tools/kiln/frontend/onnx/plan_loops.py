"""Loop and Scan as a loop of the plan: the body is converted once, see frontend/loops.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from kiln.frontend import loops
from kiln.frontend.counted.sizes import counted
from kiln.frontend.onnx import order
from kiln.frontend.onnx.node import as_tensor, extents
from kiln.frontend.onnx.value import Value
from kiln.frontend.symbols import Extent

op = relax.op


# Loops with at most so many nodes in all iterations are unrolled: constants of an iteration are then folded.
MOST_UNROLLED = 512
# Iterations of a loop that is unrolled: one with rows as results, if its condition turns out to be known.
MOST_ITERATIONS = 1024


def loop(control: Any, nodes: int) -> bool:
    """Convert the Loop of `control` as a loop of the plan; False if it is to be unrolled.

    `nodes`: of its body. Raises ValueError for what a loop of the plan cannot do.
    """
    node, body = control.node, control.attributes["body"]
    name, going, *carried = [*node.input, "", ""][: max(2, len(node.input))]
    count = _trips(control, name)
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
    _as_loop(control, count, condition, first)
    return True


def open_loop(control: Any) -> None:
    """Convert the Loop of `control`, whose condition only the run knows, as a loop of the plan."""
    name, going = [*control.node.input, "", ""][:2]
    first = control.constant(going) if going else np.array(True)
    _as_loop(control, _trips(control, name), not _always_true(control.attributes["body"]), first)


def _as_loop(control: Any, count: Any, condition: bool, first: Any) -> None:
    """Convert the Loop; `first`: the condition of the first iteration, None where only the run knows it."""
    node, body = control.node, control.attributes["body"]
    going, *carried = [*node.input[1:], ""][: max(1, len(node.input) - 1)]
    outputs = list(node.output)
    scanned = outputs[len(carried) :]
    fixed = not condition and first is not None and (isinstance(count, int) or _is_size(count))
    made = PlanLoop(
        control, body, carried, count, None if first is not None else control.host._tensor(going), condition,
        True, (), [LoopRows(one, 0, False) for one in scanned], outputs, any(scanned) and not fixed,
    )  # fmt: skip
    made.convert()


def scan(control: Any, sizes: Sequence[Extent], nodes: int) -> int | None:
    """Convert the Scan of `control` as a loop of the plan; its number of steps if it is to be unrolled.

    `sizes`: steps of each of its sequences; `nodes`: of its body. Raises ValueError where they differ.
    """
    node, body = control.node, control.attributes["body"]
    symbols, length = control.host._symbols, sizes[0]
    if not all(symbols.equal(size, length) for size in sizes):
        shown = ", ".join(map(symbols.shown, sizes))
        raise ValueError(f"its sequences have {shown} steps: allowed is one number for all")
    if isinstance(length, int) and 0 < length * max(1, nodes) <= MOST_UNROLLED:
        return length
    inputs = len(sizes)
    states = list(node.input[: len(node.input) - inputs])
    given, outputs = list(node.input[len(states) :]), list(node.output)
    count = len(outputs) - len(states)
    read = zip(
        given, control.list_of("scan_input_axes", inputs), control.list_of("scan_input_directions", inputs),
        strict=True,
    )  # fmt: skip
    written = zip(
        outputs[len(states) :], control.list_of("scan_output_axes", count),
        control.list_of("scan_output_directions", count), strict=True,
    )  # fmt: skip
    ranks = [len(extents(control.host._tensor(name))) for name in given]
    reads = [
        LoopRows(name, axis % rank, bool(back)) for (name, axis, back), rank in zip(read, ranks, strict=True)
    ]
    writes = [LoopRows(name, axis, bool(back)) for name, axis, back in written]
    PlanLoop(control, body, states, length, read=reads, written=writes, outputs=outputs).convert()
    return None


def _trips(control: Any, name: str) -> Any:
    """The greatest number of iterations: an int, an extent, an int64 tensor; None: no limit."""
    if not name:
        return None
    known = control.constant(name)
    if known is not None:
        count = max(0, int(known.reshape(-1)[0]))
        return None if count > 1 << 40 else count
    value = control.host._values.get(name)
    if value is not None:
        (size,) = value.extents()
        return control.host._symbols.simplify(size)
    tensor = control.host._tensor(name)
    if any(size != 1 for size in extents(tensor)):
        raise ValueError(f"its trip count '{name}' has the shape {extents(tensor)}, allowed: one element")
    return tensor


def _is_size(count: Any) -> bool:
    """Whether the number of iterations is an expression of dimensions."""
    return count is not None and not isinstance(getattr(count, "ty", None), relax.TensorType)


def _always_true(body: onnx.GraphProto) -> bool:
    """Whether the condition that the body of a Loop computes is the one that it is given, or a constant."""
    name = body.output[0].name
    made = {output: node for node in body.node for output in node.output}
    while name in made and made[name].op_type == "Identity":
        name = made[name].input[0]
    if name == body.input[1].name:
        return True
    for weight in body.initializer:
        if weight.name == name:
            return bool(numpy_helper.to_array(weight).reshape(-1)[0])
    node = made.get(name)
    if node is None or node.op_type != "Constant" or not node.attribute[0].HasField("t"):
        return False
    return bool(numpy_helper.to_array(node.attribute[0].t).reshape(-1)[0])


@dataclass(frozen=True)
class LoopRows:
    """What a loop reads or writes a row of in each iteration: `name`, axis, and whether it goes backwards."""

    name: str
    axis: int
    backwards: bool


@dataclass
class PlanLoop:
    """A loop of the importer `control` (control.py), with graph `body`.

    `count`: the greatest number of iterations, an int, an extent or an int64 tensor; None: no limit.
    `going`: a tensor that is the first iteration's condition; None: it is true. `condition`: whether the
    body's first result is the next one's condition. `numbered`: whether the body's first inputs are the
    iteration's number and condition. `outputs`: of the node.
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
        """Bind the node's outputs. Raises ValueError for what a loop of the plan cannot do."""
        host = self.control.host
        emit = host.bb.emit
        host.loops = number = getattr(host, "loops", 0) + 1
        outer: list[Any] = getattr(host, "loop_counters", [])
        if self.count is None and not self.condition:
            raise ValueError("it has neither a trip count nor a condition that ends it")
        self._bind_outer()
        self.limit = None if self.count is None else self._number(self.count)
        if self.counted:
            self.most = self._most(bool(outer))
        zero = relax.const(np.zeros(1, np.int64), "int64")
        first = [*self._begins(zero, self.going), *(host._tensor(name) for name in self.carried)]
        begun = emit(loops.begin(number, first, outer))
        values = [emit(relax.TupleGetItem(begun, index)) for index in range(len(first))]
        counter, lead = values[1], len(first) - len(self.carried)
        host.loop_counters = [*outer, counter]
        try:
            made = self.control.inline(self.body, f"{self.control.where}/body/", self._inputs(values, lead))
        finally:
            host.loop_counters = outer
        after = emit(op.add(counter, relax.const(1, "int64")))
        flag = host._tensor(made[0]) if self.condition else None
        made = made[1:] if self.numbered else made
        count = len(self.carried)
        following = self._begins(after, flag)
        following += [
            self._kept(name, old, at) for at, (name, old) in enumerate(zip(made, values[lead:], strict=False))
        ]
        rows = [self._row(one, name, counter) for one, name in zip(self.written, made[count:], strict=True)]
        ended = emit(loops.end(number, following, rows))
        results = [emit(relax.TupleGetItem(ended, lead + index)) for index in range(count + len(rows))]
        if self.counted:
            results[count:] = self._cut(ended, results[count:])
        for name, result in zip(self.outputs, results, strict=False):
            if name:
                self.control.bind(name, result)

    def _bind_outer(self) -> None:
        """Bind what the body reads of the graph around it, which is else computed where it is read first."""
        host = self.control.host
        for name in sorted(order.reads(self.control.node)):
            if isinstance(host._nodes.get(name), relax.Call):
                host._nodes[name] = host.bb.emit(host._nodes[name])

    def _most(self, nested: bool) -> Extent:
        """The greatest number of rows. Raises ValueError without a bound, and in a loop."""
        symbols, name = self.control.host._symbols, next(one.name for one in self.written if one.name)
        if nested:
            raise ValueError(
                f"the size of output '{name}' is computed when the model runs, in a loop: allowed outside of "
                "loops; write rows into a carried tensor of a fixed size instead"
            )
        known = isinstance(self.count, int) or _is_size(self.count)
        most: Extent = symbols.most_counted(name, self.count if known else None)
        return most

    def _begins(self, counter: Any, flag: Any) -> list[Any]:
        """Whether iteration `counter` runs, and its number; with counted rows, whether it should run, too."""
        goes = self._goes_on(counter, flag)
        if not self.counted:
            return [goes, counter]
        emit = self.control.host.bb.emit
        has_room = emit(op.less(counter, self._number(self.most)))
        return [emit(op.logical_and(goes, has_room)), counter, goes]

    def _cut(self, ended: Any, rows: Sequence[Any]) -> list[Any]:
        """`rows` with as many rows as there were iterations; a run with more ends with KILN_TOO_MANY."""
        builder = self.control.host.bb
        counter, goes = (builder.emit(relax.TupleGetItem(ended, index)) for index in (1, 2))
        none = relax.const(np.full(1, -1, np.int64), "int64")
        number = builder.emit(op.where(goes, none, counter))
        name = next(one.name for one in self.written if one.name)
        return counted(builder, self.control.host._symbols, name, number, rows, self.most)

    def _number(self, count: Any) -> Any:
        """The number of iterations as an int64 tensor of one element."""
        emit = self.control.host.bb.emit
        if isinstance(count, int):
            return relax.const(np.full(1, count, np.int64), "int64")
        if isinstance(count, relax.Expr) and isinstance(count.ty, relax.TensorType):
            whole = count if str(count.ty.dtype) == "int64" else emit(op.astype(count, "int64"))
        else:
            whole = as_tensor(Value(np.array([count], object), "int64"))
        return emit(op.reshape(whole, [1]))

    def _goes_on(self, counter: Any, flag: Any) -> Any:
        """Whether iteration `counter` runs."""
        emit = self.control.host.bb.emit
        if flag is not None:
            flag = emit(op.reshape(flag, [1]))
        if self.limit is None:
            return relax.const(np.ones(1, bool), "bool") if flag is None else flag
        inside = emit(op.less(counter, self.limit))
        return inside if flag is None else emit(op.logical_and(inside, flag))

    def _inputs(self, values: Sequence[Any], lead: int) -> Mapping[str, str]:
        """By name in the body, the tensors that its inputs are; carried values begin at `lead`."""
        control = self.control
        found = []
        if self.numbered:
            shape = relax.ShapeExpr(
                [int(dim.dim_value) for dim in self.body.input[0].type.tensor_type.shape.dim]
            )
            iteration = op.reshape(values[1], shape)
            found.append(control.bind(f"{control.where}/iteration", iteration))
            found.append(control.set(f"{control.where}/going", np.array(True)))
        for index, value in enumerate(values[lead:]):
            found.append(control.bind(f"{control.where}/carried{index}", value))
        for index, one in enumerate(self.read):
            found.append(control.bind(f"{control.where}/row{index}", self._part(one, values[1])))
        return dict(zip([value.name for value in self.body.input], found, strict=True))

    def _part(self, one: LoopRows, counter: Any) -> Any:
        """The row of a sequence that an iteration reads."""
        emit = self.control.host.bb.emit
        source = self.control.host._tensor(one.name)
        at = counter
        if one.backwards:
            last = emit(op.subtract(self.limit, relax.const(1, "int64")))
            at = emit(op.subtract(last, counter))
        return op.squeeze(emit(op.take(source, at, one.axis)), [one.axis])

    def _kept(self, name: str, old: Any, number: int) -> Any:
        """Carried value `name` of the next iteration. Raises ValueError if its type is not that of `old`."""
        host = self.control.host
        new = host._tensor(name)
        sizes = extents(old), extents(new)
        same = str(new.ty.dtype) == str(old.ty.dtype) and len(sizes[0]) == len(sizes[1])
        if not same or not all(host._symbols.equal(a, b) for a, b in zip(*sizes, strict=True)):
            shown = [
                f"{expr.ty.dtype}[{', '.join(map(host._symbols.shown, size))}]"
                for expr, size in zip((old, new), sizes, strict=True)
            ]
            raise ValueError(
                f"carried value {number} ('{self.body.output[self.numbered + number].name}' of its body) is "
                f"{shown[0]} before an iteration and {shown[1]} after it: allowed is one type and one shape; "
                "make it as large as it gets before the loop, and write parts of it"
            )
        return host.bb.emit(op.reshape(new, old.ty.shape)) if str(new.ty.shape) != str(old.ty.shape) else new

    def _row(self, one: LoopRows, name: str, counter: Any) -> Any:
        """The output `one`, of which an iteration writes the row `name`."""
        value = self.control.host._tensor(name)
        axis = one.axis + len(value.ty.shape) + 1 if one.axis < 0 else one.axis
        rows: Extent = self.most if self.counted else self.count
        return self.control.host.bb.emit(loops.row(value, counter, rows, axis, one.backwards))
