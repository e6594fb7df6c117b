"""From the fused Relax module to steps: which kernel runs on which tensors, in which order.

The result is plain data; nothing after this stage needs to know Relax.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import GenericConst

from kiln.config import sizes
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.frontend.symbols import part_of, to_size
from kiln.graph.bindings import operator
from kiln.kernels import abi
from kiln.kernels.content import digest
from kiln.kernels.factors import whole_products
from kiln.kernels.families import Part, kernels_of
from kiln.kernels.gemm_int import narrow
from kiln.kernels.halo import (
    View,
    border,
    copy_of,
    find_views,
    padded_view,
    with_views,
)
from kiln.kernels.joined import find_joins
from kiln.kernels.kernel import Array, Machine
from kiln.kernels.opinfo import OpInfo, refusal
from kiln.kernels.symbols import divided, ranges_of, simplify, variables

# By dimension its least and greatest size.
Box = Mapping[str, tuple[int, int]]


@dataclass
class Tensor:
    """A tensor of the plan. `alias`: it is the same memory as that tensor, seen with another shape.

    `slack`: bytes behind it that a library may read."""

    name: str
    dtype: str
    shape: list[SizeExpr]
    kind: str  # input, param, activation, workspace
    alias: str | None = None
    slack: int = 0

    def describe(self, box: Box | None = None) -> dict[str, Any]:
        """Its entry in steps.json; `bytes` are those of the greatest sizes of `box`."""
        elements = 1
        for size in self.shape:
            elements *= sizes.bounds(size, box or {})[1]
        width = (int(tvm.DataType(self.dtype).bits) + 7) // 8
        about = {name: value for name, value in self.__dict__.items() if name != "slack"}
        return {**about, "bytes": elements * width + self.slack}


@dataclass
class Steps:
    """All that later stages need: tensors, kernels, steps, parameters, and the lowered functions."""

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    params: dict[str, Array] = field(default_factory=dict)
    functions: dict[str, tirx.PrimFunc] = field(default_factory=dict)
    box: dict[str, tuple[int, int]] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "outputs": self.outputs,
            "tensors": [tensor.describe(self.box) for tensor in self.tensors.values()],
            "kernels": self.kernels,
            "steps": self.steps,
        }


def _plus(size: SizeExpr, more: int) -> SizeExpr:
    if isinstance(size, int) or not more:
        return size if not more else size + more
    return ["+", size, more]


def _is_tensor(argument: Any) -> bool:
    """Whether an argument of a call is a tensor; the others are sizes."""
    return isinstance(argument.ty, relax.TensorType)


class Builder:
    """Walks `main` once and adds steps. `halos`: tensors may lie inside larger ones (kernels/halo.py)."""

    halos = True

    def __init__(
        self, model: str, mod: tvm.IRModule, ops: dict[str, list[OpInfo]], params: dict[str, Array],
        machine: Machine, target: tvm.target.Target,
    ) -> None:  # fmt: skip
        self.model, self.mod, self.ops, self.machine, self.target = model, mod, ops, machine, target
        self.constants = params
        self.result = Steps()
        self._dims = json.loads(str((mod["main"].attrs or {}).get("kiln.dims", "{}")))
        for dim in self._dims.values():
            factor = int(dim["divide"])
            self.result.box[dim["dim"]] = dim["min"] * factor, dim["max"] * factor
        self._sizes: dict[Any, SizeExpr] = {}  # variable of main → what it stands for
        self._multiples: dict[str, int] = {}  # dimension → what it is a multiple of
        self._symbols: set[str] = set()
        # Kernels that are lowered, by the hash of what they were made from.
        self._lowered: dict[int, list[tuple[tirx.PrimFunc, str, list[tuple[str, int]]]]] = {}
        self._groups: dict[Any, Any] = {}
        self._views = find_views(mod, ops, self.machine) if self.halos else {}
        self._joins = find_joins(mod, ops, self._views) if self.halos else {}
        self._parts = self._find_parts()  # operand of a joined concat → the concat, its view
        self._joined: dict[Any, Tensor] = {}  # concat → the tensor that its operands lie in
        self._view_of: dict[str, View] = {}  # tensors that are read through a view
        self._values: dict[Any, Any] = {}  # Relax variable → tensor name, or a list of them
        self._whole: dict[str, str] = {}  # a tensor read through a view → the one it lies in
        self._copies: dict[str, str] = {}  # of inputs that libraries read
        self._count = 0
        self._given: dict[Any, dict[Any, SizeExpr]] = {}

    def build(self) -> Steps:
        """The steps of `main`."""
        main = self.mod["main"]
        count = int(main.attrs["num_input"])
        for param in main.params:
            self._learn(param.ty)
        for index, variable in enumerate(main.params):
            name = variable.name
            if isinstance(variable.ty, relax.ShapeType):  # only there to define variables
                continue
            if index < count:
                tensor = self._tensor(f"input{index}", variable.ty, "input")
                self.result.inputs.append(tensor.name)
            else:
                tensor = self._constant(name, self.constants[name])
            self._values[variable] = tensor.name
        for block in main.body.blocks:
            for binding in block.bindings:
                self._values[binding.var] = self._bind(binding.var, binding.value)
        outputs = self._value(main.body.body)
        for index, name in enumerate(outputs if isinstance(outputs, list) else [outputs]):
            self.result.outputs.append(self._own_output(index, name))
        self._drop_unused()
        return self.result

    def _learn(self, ty: Any) -> None:
        """Note the variables in the type of a parameter."""
        for entry in (ty.values if isinstance(ty, relax.ShapeType) else getattr(ty, "shape", None)) or []:
            for variable in variables(entry):
                dim = self._dims[variable.name]
                divide = int(dim["divide"])
                self._sizes[variable] = part_of(dim["dim"], divide)
                self._multiples[dim["dim"]] = divide

    def _size(self, expr: Any, values: Mapping[Any, SizeExpr]) -> SizeExpr:
        return to_size(expr, values, self._multiples)

    def _tensor(self, name: str, ty: Any, kind: str, alias: str | None = None) -> Tensor:
        try:
            shape = [self._size(size, self._sizes) for size in ty.shape]
        except ValueError as error:
            raise KilnError(f"{self.model}: a tensor's size cannot be computed: {error}") from error
        tensor = Tensor(name, str(ty.dtype), shape, kind, alias)
        self.result.tensors[name] = tensor
        return tensor

    def _constant(self, name: str, value: Array) -> Tensor:
        tensor = Tensor(name, str(value.dtype), list(value.shape), "param")
        self.result.tensors[name] = tensor
        self.result.params[name] = value
        return tensor

    def _value(self, expr: Any) -> Any:
        """The tensor name of an expression, or a list of names for a tuple."""
        if isinstance(expr, relax.Var):
            return self._values[expr]
        if isinstance(expr, relax.Tuple):
            return [self._value(item) for item in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[int(expr.index)]
        if isinstance(expr, GenericConst):
            return self._constant(f"const{len(self.result.params)}", expr.value.numpy()).name
        raise KilnError(f"{self.model}: cannot compile the expression {type(expr).__name__} in main")

    def _bind(self, var: Any, value: Any) -> Any:
        if not isinstance(value, relax.Call):
            return self._value(value)
        name = operator(value)
        if name == "relax.reshape":
            source = self._value(value.args[0])
            return self._tensor(self._new_name(), value.ty, "activation", alias=source).name
        if name == "relax.call_dps_packed":
            return self._external(value)
        if name != "relax.call_tir":
            library = value.args[0].global_symbol if name == "relax.call_pure_packed" else None
            known = library or (name or str(value.op)).removeprefix("relax.")
            raise KilnError(f"{self.model}: operator '{known}' cannot be compiled{self._origin(known)}")
        return self._call(var, value)

    def _origin(self, operator: str) -> str:
        """Which nodes of the model's file became an operator, where the importer has left that."""
        nodes = json.loads(str(self.mod["main"].attrs.get("kiln.nodes", "{}"))).get(operator)
        return f": {', '.join(nodes)}" if nodes else ""

    def _call(self, var: Any, call: Any) -> Any:
        variable = call.args[0]
        inputs = [self._value(item) for item in call.args[1].fields if _is_tensor(item)]
        ops = self.ops.get(variable.name_hint, [])
        if len(inputs) == 1 and inputs[0] in self._view_of and self._is_border(ops, inputs[0]):
            return self._whole[inputs[0]]
        types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
        if var in self._joins:
            return self._join(var, inputs)
        if var in self._parts:
            concat, place = self._parts[var]
            whole = self._whole_of(concat)
            size = [int(extent) for extent in call.ty.shape]
            return self._inside(self._bare(call), variable.name_hint, size, inputs, ops, place, whole)
        view = self._views.get(var)
        if view is not None:
            shape = [self._size(size, self._sizes) for size in call.ty.shape]
            return self._haloed(self._bare(call), variable.name_hint, shape, inputs, ops, view)
        view = padded_view(ops) if self.halos else None
        if view is not None:  # nobody could write inside: a copy does, row by row without a condition
            source = self.result.tensors[inputs[0]]
            func, copies = copy_of(source.shape, source.dtype)
            name = f"copy of {source.shape} {source.dtype}"
            return self._whole[self._haloed(func, name, source.shape, inputs, copies, view)]
        outputs = [self._tensor(self._new_name(), ty, "activation").name for ty in types]
        self._group(self._bare(call), ops, inputs, outputs, variable.name_hint)
        return outputs if isinstance(call.ty, relax.TupleType) else outputs[0]

    def _external(self, call: Any) -> str:
        """Add the step of a part that a library computes: one call of a function that generated C defines."""
        symbol = str(call.args[0].global_symbol)
        about = json.loads(str(self.mod.attrs["kiln.externals"]))[symbol]
        tensors = [item for item in call.args[1].fields if _is_tensor(item)]
        numbers = [size for item in call.args[1].fields if not _is_tensor(item) for size in item.values]
        inputs = [self._readable(self._value(item), about["reads_past"]) for item in tensors]
        output = self._tensor(self._new_name(), call.ty, "activation")
        block = about["block"]  # of a kernel on a GPU, whose grid stands behind the sizes
        grid = [self._size(simplify(n), self._sizes) for n in numbers[-3:]] if block else []
        numbers = numbers[:-3] if block else numbers
        extent = self._size(simplify(numbers.pop()), self._sizes) if about["parallel"] else 0
        scratch = []
        if about["scratch"]:
            room = Tensor(self._new_name(), "uint8", [about["scratch"]], "workspace")
            self.result.tensors[room.name] = room
            scratch.append(room.name)
        elements = int(np.prod([sizes.bounds(size, self.result.box)[1] for size in output.shape]))
        if symbol not in self._symbols:
            self._symbols.add(symbol)
            dtypes = [self.result.tensors[name].dtype for name in inputs]
            arguments = [{"dtype": dtype, "const": True} for dtype in dtypes]
            arguments.append({"dtype": output.dtype, "const": False})
            arguments += [{"dtype": "uint8", "const": False} for _ in scratch]
            arguments += [{"dtype": "int32", "const": True, "scalar": True} for _ in numbers]
            self.result.kernels.append(
                {
                    "symbol": symbol,
                    "args": arguments,
                    "parallel": about["parallel"],
                    "family": about["backend"],
                    "ops": about["ops"],
                    "flops": 2 * about["depth"] * elements,
                    "external": {key: about[key] for key in ("backend", "key", "opens", "block", "source")},
                }
            )
        self.result.steps.append(
            {
                "kernel": symbol,
                "extent": extent,
                "args": [
                    *inputs,
                    output.name,
                    *scratch,
                    *({"dim": self._size(n, self._sizes)} for n in numbers),
                ],
                "writes": [output.name],
                "in_place": [inputs[position] for position in about["in_place"]],
                "label": "+".join(op["name"].removeprefix("nn.") for op in about["ops"]),
                "attrs": about["anchor"],
                "macs": about["depth"] * elements,
                **({"launch": {"grid": grid, "block": block}} if block else {}),
            }
        )
        return output.name

    def _readable(self, name: str, slack: int) -> str:
        """The tensor with so many bytes behind it that can be read too, in a copy where the memory is not the
        arena's. A parameter is never read past: it ends before another or before what fills the image up."""
        root = self._root(name)
        if slack == 0 or root.kind == "param":
            return name
        if root.kind == "input":
            if name not in self._copies:
                self._copies[name] = self._copy(name, f"copy_{name}")
            name = self._copies[name]
            root = self._root(name)
        root.slack = max(root.slack, slack)
        return name

    def _bare(self, call: Any) -> tirx.PrimFunc:
        """The function of a call with sizes that are given as arguments written out."""
        func = self.mod[call.args[0]]
        scalars = [param for param in func.params if not tirx.is_buffer_var(param)]
        if not scalars:
            return func
        sizes_given = [item for item in call.args[1].fields if not _is_tensor(item)]
        if len(call.args) > 2:
            sizes_given += list(call.args[2].values)
        given = dict(zip(scalars, sizes_given, strict=True))
        self._given[func] = {param: self._size(value, self._sizes) for param, value in given.items()}
        return func

    def _new_name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _is_border(self, ops: list[OpInfo], name: str) -> bool:
        """Whether this padding is the one whose result the tensor's producer has written already."""
        return padded_view(ops) == self._view_of[name].spread(0)

    def _haloed(
        self, func: tirx.PrimFunc, name: str, shape: list[SizeExpr], inputs: list[str], ops: list[OpInfo],
        view: View,
    ) -> str:  # fmt: skip
        """Add a group whose result, of `shape`, lies inside a padded tensor, and the step for the border."""
        dtype = str([param for param in func.params if tirx.is_buffer_var(param)][-1].dtype)
        whole = self._around(view, shape, dtype)
        inner = self._inside(func, name, shape, inputs, ops, view, whole)
        self._border(view, inner, whole)
        return inner

    def _around(self, view: View, shape: Sequence[SizeExpr], dtype: str) -> Tensor:
        """The tensor in which one of `shape` lies as `view` says."""
        around = [before + after for before, after in zip(view.origin, view.after, strict=True)]
        outer_shape = [_plus(size, more) for size, more in zip(shape, around, strict=True)]
        whole = Tensor(self._new_name(), dtype, outer_shape, "activation")
        self.result.tensors[whole.name] = whole
        if view.apart:
            self._view_of[whole.name] = view.whole()
        return whole

    def _inside(
        self, func: tirx.PrimFunc, name: str, shape: list[SizeExpr], inputs: list[str], ops: list[OpInfo],
        view: View, whole: Tensor,
    ) -> str:  # fmt: skip
        """Add a group whose result, of `shape`, lies inside another tensor."""
        inner = self._inner(view, shape, whole)
        self._group(func, ops, inputs, [inner], name)
        return inner

    def _inner(self, view: View, shape: list[SizeExpr], whole: Tensor) -> str:
        inner = Tensor(self._new_name(), whole.dtype, shape, "activation", whole.name)
        self.result.tensors[inner.name] = inner
        self._view_of[inner.name] = view
        self._whole[inner.name] = whole.name
        return inner.name

    def _border(self, view: View, inner: str, whole: Tensor) -> None:
        """Add the step that fills what lies around a view."""
        shape = self.result.tensors[inner].shape
        # Sizes that are open get variables of the kernel's own, so that equal borders are one kernel.
        extents: list[Any] = [
            size if isinstance(size, int) else tirx.Var(f"n{axis}", "int64")
            for axis, size in enumerate(shape)
        ]
        pairs = zip(extents, shape, strict=True)
        values = {extent: size for extent, size in pairs if isinstance(extent, tirx.Var)}
        info: OpInfo = {
            "name": "nn.pad",
            "kind": "injective",
            "attrs": {"pad_value": view.value},
            "out_dtype": whole.dtype,
        }
        box = {variable: sizes.bounds(size, self.result.box) for variable, size in values.items()}
        with ranges_of(box):
            kernel = border(view, extents, whole.dtype, self.machine.lanes(whole.dtype))
            part = Part(kernel, [kernel.func.params[0]], 0)
            symbol, _ = self._kernel(part, [info])
            arguments = [whole.name, *({"dim": values[variable]} for variable in kernel.sizes)]
            self._step(symbol, part, [info], arguments, [whole.name], values)

    def _find_parts(self) -> dict[Any, tuple[Any, View]]:
        calls = {b.var: b.value for block in self.mod["main"].body.blocks for b in block.bindings}
        return {
            operand: (concat, view)
            for concat, join in self._joins.items()
            for operand, view, direct in zip(
                calls[concat].args[1].fields, join.views, join.direct, strict=True
            )
            if direct
        }

    def _whole_of(self, concat: Any) -> Tensor:
        """The tensor of a joined concat, there from its first operand on."""
        if concat not in self._joined:
            join = self._joins[concat]
            shape = [int(size) for size in concat.ty.shape]
            self._joined[concat] = self._around(join.place, shape, str(concat.ty.dtype))
        return self._joined[concat]

    def _join(self, concat: Any, inputs: list[str]) -> str:
        """What a concat still needs whose operands lie in its place: copies of the others, a border."""
        join, whole = self._joins[concat], self._whole_of(concat)
        for source, view, direct in zip(inputs, join.views, join.direct, strict=True):
            if not direct:
                tensor = self.result.tensors[source]
                func, copies = copy_of(tensor.shape, tensor.dtype)
                name = f"copy of {tensor.shape} {tensor.dtype}"
                self._inside(func, name, tensor.shape, [source], copies, view, whole)
        if not any((*join.place.origin, *join.place.after)):
            return whole.name
        inner = self._inner(join.place, [int(size) for size in concat.ty.shape], whole)
        self._border(join.place, inner, whole)
        return inner

    def _group(
        self, func: tirx.PrimFunc, ops: list[OpInfo], inputs: list[str], outputs: list[str], name: str
    ) -> None:
        """Add the steps of one fused group."""
        known = frozenset(i for i, item in enumerate(inputs) if self.result.tensors[item].kind == "param")
        places = [*inputs, *outputs]
        values = self._values_of(func, places)
        views = {i: self._view_of[item] for i, item in enumerate(places) if item in self._view_of}
        small = frozenset(i for i in known if narrow(self.result.params[inputs[i]]))
        key = (name, known, small, tuple(views.items()), repr(list(values.values())))
        if key not in self._groups and values:
            bare = [p for p in func.params if tirx.is_buffer_var(p)]
            func = tirx.PrimFunc(bare, func.body, None, attrs=func.attrs)
            func, made = whole_products(func, values)
            replaced = [product.a for product in made.values()]
            values = {
                **{old: value for old, value in values.items() if old not in replaced},
                **{new: self._size(product, values) for new, product in made.items()},
            }
        elif values:
            values = self._groups[key][2]
        box = {variable: sizes.bounds(value, self.result.box) for variable, value in values.items()}
        with ranges_of(box):
            if key not in self._groups:
                func = with_views(func, views)
                parts = []
                try:
                    for part in kernels_of(func, ops, set(known), self.machine, views, small):
                        symbol, scratch = self._kernel(part, ops)
                        parts.append((part, symbol, scratch))
                except KilnError:
                    raise
                except Exception as error:  # TVM's passes raise many kinds
                    raise KilnError(f"{self.model}: {refusal(ops, error)}") from error
                self._groups[key] = func, parts, values
            func, parts, values = self._groups[key]
            self._run(func, parts, ops, places, outputs, values)

    def _values_of(self, func: tirx.PrimFunc, places: list[str]) -> dict[Any, SizeExpr]:
        """What the variables in the shapes of a function's parameters stand for in this call."""
        values = dict(self._given.get(func, {}))
        for param, name in zip((p for p in func.params if tirx.is_buffer_var(p)), places, strict=True):
            for size, value in zip(param.shape, self.result.tensors[name].shape, strict=True):
                if isinstance(size, tirx.Var):
                    values.setdefault(size, value)
                elif (
                    isinstance(size, tirx.Mul)
                    and isinstance(size.a, tirx.Var)
                    and isinstance(size.b, tirx.IntImm)
                ):
                    values.setdefault(size.a, divided(value, int(size.b)))
        return values

    def _run(
        self,
        func: tirx.PrimFunc,
        parts: list[Any],
        ops: list[OpInfo],
        names: list[str],
        outputs: list[str],
        values: Mapping[Any, SizeExpr],
    ) -> None:
        """Add one step for each kernel of a group; `names` are the tensors behind its parameters."""
        places = dict(zip(func.params, names, strict=True))
        for part, symbol, scratch in parts:
            arguments: list[Any] = []
            for position, buffer in enumerate(part.buffers):
                if buffer not in places:
                    places[buffer] = self._new_name()
                    shape = [self._size(size, values) for size in buffer.shape]
                    self.result.tensors[places[buffer]] = Tensor(
                        places[buffer], str(buffer.dtype), shape, "activation"
                    )
                argument = places[buffer]
                if position in part.kernel.packs:
                    argument = self._pack(argument, part, position, symbol)
                arguments.append(argument)
            for dtype, size in scratch:
                scratch_name = self._new_name()
                elements = size * 8 // tvm.DataType(dtype).bits
                self.result.tensors[scratch_name] = Tensor(scratch_name, dtype, [elements], "workspace")
                arguments.append(scratch_name)
            arguments += [{"dim": values[variable]} for variable in part.kernel.sizes]
            written = [places[b] for b in part.buffers if places[b] in outputs or b not in func.params]
            if part.kernel.family == "loops":
                written = [places[part.buffers[-1]]]
            self._step(symbol, part, ops, arguments, written, values)

    def _step(
        self,
        symbol: str,
        part: Part,
        ops: list[OpInfo],
        arguments: list[Any],
        written: list[str],
        values: Mapping[Any, SizeExpr],
    ) -> None:
        tasks = 0 if part.kernel.tasks is None else part.kernel.tasks
        label = "+".join(op["name"].removeprefix("nn.") for op in ops) or part.kernel.family
        self.result.steps.append(
            {
                "kernel": symbol,
                "extent": self._size(simplify(tasks), values),
                "args": arguments,
                "writes": written,
                "in_place": [arguments[position] for position in part.kernel.in_place],
                "label": label,
                "attrs": ops[0]["attrs"] if ops else {},
                "macs": part.macs,
            }
        )

    def _pack(self, name: str, part: Part, position: int, symbol: str) -> str:
        """The tensor that holds the packed form of a parameter; made once."""
        value = self.result.params[name]
        packed = np.ascontiguousarray(part.kernel.packs[position](value))
        new_name = f"{name}.{symbol}"
        if new_name not in self.result.params:
            self._constant(new_name, packed)
        return new_name

    def _kernel(self, part: Part, ops: list[OpInfo]) -> tuple[str, list[tuple[str, int]]]:
        """Lower a kernel, or find the equal one, and give it its symbol."""
        known = int(tvm_ffi.structural_hash(part.kernel.func))
        for func, symbol, scratch in self._lowered.get(known, []):
            if tvm_ffi.structural_equal(func, part.kernel.func):
                return symbol, scratch
        lowered = abi.lower(part.kernel, self.target)
        stem = ops[0]["name"].split(".")[-1] if ops else "kernel"
        symbol = f"kilnk_{stem}_{digest(lowered.func)}"  # kiln_* is the runtime's
        self._lowered.setdefault(known, []).append((part.kernel.func, symbol, lowered.scratch))
        if symbol in self._symbols:
            return symbol, lowered.scratch
        self._symbols.add(symbol)
        self.result.functions[symbol] = lowered.func.with_attr("global_symbol", symbol)
        written = abi.written(lowered.func)
        pointers = lowered.func.params[: len(part.buffers)]
        arguments = [
            {"dtype": str(buffer.dtype), "const": pointer not in written}
            for buffer, pointer in zip(part.buffers, pointers, strict=True)
        ]
        arguments += [{"dtype": dtype, "const": False} for dtype, _size in lowered.scratch]
        arguments += [{"dtype": "int32", "const": True, "scalar": True} for _ in part.kernel.sizes]
        self.result.kernels.append(
            {
                "symbol": symbol,
                "args": arguments,
                "parallel": part.kernel.tasks is not None,
                "family": part.kernel.family,
                "ops": ops,
                "flops": 2 * part.macs,
            }
        )
        return symbol, lowered.scratch

    def _root(self, name: str) -> Tensor:
        tensor = self.result.tensors[name]
        while tensor.alias is not None:
            tensor = self.result.tensors[tensor.alias]
        return tensor

    def _own_output(self, index: int, name: str) -> str:
        """The tensor of output `index`: one that no input, parameter or other output shares memory with."""
        root = self._root(name)
        taken = {self._root(other).name for other in self.result.outputs}
        if root.kind == "activation" and root.name not in taken and not root.slack:
            return name
        return self._copy(name, f"copy_output{index}")

    def _copy(self, name: str, key: str) -> str:
        """Add the step that copies a tensor; `key`: what no other copy is called. The copy."""
        source = self.result.tensors[name]
        made = Tensor(self._new_name(), source.dtype, source.shape, "activation")
        self.result.tensors[made.name] = made
        func, copies = copy_of(source.shape, source.dtype)
        self._group(func, copies, [name], [made.name], key)
        return made.name

    def _drop_unused(self) -> None:
        """Forget parameters that only their packed forms stand for."""
        used = {name for step in self.result.steps for name in step["args"] if isinstance(name, str)}
        used |= set(self.result.inputs) | set(self.result.outputs)
        for name in list(used):
            while (alias := self.result.tensors[name].alias) is not None:
                used.add(alias)
                name = alias
        self.result.tensors = {n: t for n, t in self.result.tensors.items() if n in used}
        self.result.params = {n: v for n, v in self.result.params.items() if n in used}
