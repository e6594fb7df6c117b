"""Partitioning: IRModule → IRModule. What a backend's patterns match becomes a call of an extern symbol.

The call is relax.call_dps_packed: its output is allocated by the caller, so Kiln's planner places it. The
generated C is collected in the module's attribute `external_mods`, one TVM C-source module a symbol, and what
the plan has to know of each in `kiln.externals` (JSON). Passes can be run one after the other, with different
backends: what one has taken is opaque to the next.

    before lowering:  Partition.graph(backend)   patterns of relax.dpl on operators
    after fusion:     Partition.groups(backend)  op info of fused PrimFuncs
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from kiln.byoc.backend import Backend, Code, Facts
from kiln.byoc.init_once import guard
from kiln.byoc.match import Match, Operand
from kiln.callbacks import mutator
from kiln.errors import KilnError
from kiln.graph.bindings import const, count_uses, operator

EXTERNALS = "kiln.externals"
MODULES = "external_mods"  # TVM's own name for it
Choose = Callable[[Backend, Match, Code], bool]


def symbol_of(backend: str, match: Match, code: Code) -> str:
    """kilnx_<backend>_<pattern>_<hash of the source>: equal code is one symbol, in any model.

    What is made ready at open belongs to a symbol, and so do the constants that it is made of.
    """
    stem = re.sub(r"[^a-z0-9]+", "_", match.pattern.lower())
    digest = hashlib.sha256(f"{backend}\0{code.source}".encode())
    for value in _opened(code).values():
        digest.update(f"\0{value.dtype}{value.shape}".encode() + value.tobytes())
    return f"kilnx_{backend}_{stem}_{digest.hexdigest()[:12]}"


def _opened(code: Code) -> dict[int, Any]:
    """The constants that are handed over at open, by their place among the operands."""
    places = [i for i, name in enumerate(code.operands) if name in code.constants]
    return {i: code.constants[code.operands[i]] for i in places} if code.opens else {}


def externals(mod: tvm.IRModule) -> dict[str, Any]:
    """By symbol what the plan has to know of it."""
    found = mod.attrs.get(EXTERNALS) if mod.attrs else None
    return dict(json.loads(str(found))) if found else {}


class _Found:
    """A match with its code, and the expressions that its call gets."""

    def __init__(self, backend: Backend, match: Match, code: Code) -> None:
        self.match, self.code = match, code
        self.symbol = symbol_of(backend.name, match, code)
        missing = [name for name in code.operands if name not in match.operands]
        if missing:
            raise KilnError(
                f"backend '{backend.name}': pattern '{match.pattern}' has no operand '{missing[0]}'; "
                f"it has: {', '.join(match.operands)}"
            )

    def call(self, visit: Callable[[Any], Any]) -> Any:
        """The call that takes the subgraph's place."""
        arguments = []
        for name in self.code.operands:
            operand = self.match.operands[name]
            packed = self.code.constants.get(name)
            expr = visit(operand.expr) if packed is None else const(packed, str(packed.dtype))
            if packed is None and name in self.code.dtypes:
                expr = relax.op.astype(expr, self.code.dtypes[name])
            arguments.append(expr)
        code = self.code
        numbers = [*code.sizes, *([] if code.tasks is None else [code.tasks])]
        numbers += [] if code.launch is None else code.launch.grid
        if numbers:
            whole = [tirx.IntImm("int64", n) if isinstance(n, int) else n for n in numbers]
            arguments.append(relax.ShapeExpr(whole))
        output = self.match.output
        dtype = self.code.dtypes.get("output", output.dtype)
        ty = relax.TensorType(output.expr.ty.shape, dtype)
        made = relax.call_dps_packed(self.symbol, relax.Tuple(arguments), ty)
        return made if dtype == output.dtype else relax.op.astype(made, output.dtype)

    def describe(self, backend: Backend) -> dict[str, Any]:
        """Its entry in `kiln.externals`."""
        source = self.code.source + (guard(len(_opened(self.code))) if self.code.opens else "")
        return {
            "backend": backend.name,
            "key": self.match.key,
            "ops": list(self.match.ops),
            "anchor": self.match.anchor["attrs"],
            "parallel": self.code.tasks is not None,
            "in_place": [list(self.code.operands).index(name) for name in self.code.in_place],
            "reads_past": self.code.reads_past,
            "depth": self.match.depth,
            "opens": list(_opened(self.code)) if self.code.opens else None,
            "scratch": self.code.scratch,
            "block": None if self.code.launch is None else list(self.code.launch.block),
            "source": re.sub(r"\bSYMBOL(?=\b|_)", self.symbol, source),
        }


@mutator
class _Rewriter(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    def __init__(self, mod: tvm.IRModule, found: Mapping[Any, _Found]) -> None:
        super().__init__(mod)
        self.found = found

    def visit_call_(self, call: Any) -> Any:
        match = self.found.get(call)
        return self.visit_expr_post_order(call) if match is None else match.call(self.visit_expr)


class Partition:
    """The passes of one build. `choose` decides for each match whether the library computes it."""

    def __init__(self, facts: Facts, choose: Choose = lambda *_: True) -> None:
        self.facts, self.choose = facts, choose

    def graph(self, backend: Backend) -> Callable[[tvm.IRModule], tvm.IRModule]:
        """The pass that gives a backend what its graph patterns match."""

        def run(mod: tvm.IRModule) -> tvm.IRModule:
            main = mod["main"]
            uses, definitions = count_uses(mod), relax.analysis.get_var2val(main)
            bindings = [binding for block in main.body.blocks for binding in block.bindings]
            variables = {binding.value: binding.var for binding in bindings}
            patterns = backend.patterns()
            found: dict[Any, _Found] = {}
            taken: set[Any] = set()
            for binding in reversed(bindings):
                call = binding.value
                if not isinstance(call, relax.Call) or call in taken:
                    continue
                for pattern in patterns:
                    result = pattern.match(call, definitions, variables)
                    if result is None:
                        continue
                    match, inside = result
                    inner = [one for one in inside if not one.same_as(call)]
                    # What something else reads too, or has been given away, must stay.
                    if any(one in taken or uses.get(variables.get(one)) != 1 for one in inner):
                        continue
                    code = backend.generate(match, self.facts)
                    if code is not None:
                        # Left to Kiln is the whole of it: the library does not get a shorter form instead.
                        taken.update(inside)
                        if self.choose(backend, match, code):
                            found[call] = _Found(backend, match, code)
                        break
            return self._rewritten(mod, backend, found)

        return run

    def groups(self, backend: Backend, values: Mapping[str, Any]) -> Callable[[tvm.IRModule], tvm.IRModule]:
        """The pass that gives a backend fused functions, after lowering.

        `values`: constants by the name of their variable in `main`.
        """

        def run(mod: tvm.IRModule) -> tvm.IRModule:
            known = {param: values.get(param.name) for param in mod["main"].params}
            found: dict[Any, _Found] = {}
            for block in mod["main"].body.blocks:
                for binding in block.bindings:
                    call = binding.value
                    if operator(call) != "relax.call_tir" or not isinstance(call.ty, relax.TensorType):
                        continue
                    if not all(isinstance(item.ty, relax.TensorType) for item in call.args[1].fields):
                        continue
                    inputs = [Operand.of(item, known.get(item)) for item in call.args[1].fields]
                    for group in backend.groups():
                        match = group.read(mod[call.args[0]], [*inputs, Operand.of(call)])
                        code = None if match is None else backend.generate(match, self.facts)
                        if match is not None and code is not None:
                            if self.choose(backend, match, code):
                                found[call] = _Found(backend, match, code)
                            break
            return self._rewritten(mod, backend, found)

        return run

    def _rewritten(self, mod: tvm.IRModule, backend: Backend, found: Mapping[Any, _Found]) -> tvm.IRModule:
        if not found:
            return mod
        modules = list(mod.attrs[MODULES]) if mod.attrs and MODULES in mod.attrs else []
        records = externals(mod)
        rewriter = _Rewriter(mod, found)
        variable = mod.get_global_var("main")
        rewriter.builder_.update_func(variable, rewriter.visit_expr(mod["main"]))
        result = relax.transform.DeadCodeElimination()(rewriter.builder_.get())
        create = tvm_ffi.get_global_func("runtime.CSourceModuleCreate")
        for one in found.values():
            if one.symbol not in records:
                records[one.symbol] = one.describe(backend)
                modules.append(create(records[one.symbol]["source"], "c", [one.symbol], []))
        return result.with_attrs({MODULES: modules, EXTERNALS: json.dumps(records, sort_keys=True)})
