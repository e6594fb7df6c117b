"""Partitioning: IRModule → IRModule. A subgraph that a backend's pattern matches becomes an extern call.

The call is relax.call_dps_packed: its output is allocated by the caller, so Kiln's planner places it. The
generated C is collected in the module's attribute `external_mods`, one TVM C-source module for each symbol;
the plan reads the symbols' properties from `kiln.externals` (JSON). Passes with different backends can run
one after the other: a call that one pass has created is opaque to the next.

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

from kiln.byoc.backend import Backend, Code, TargetFacts
from kiln.byoc.init_once import guard
from kiln.byoc.match import Match, Operand
from kiln.callbacks import mutator
from kiln.errors import KilnError
from kiln.graph.bindings import const, count_uses, operator

EXTERNALS = "kiln.externals"
MODULES = "external_mods"  # TVM's own name for it
PARTS = "parts"  # the operand that is the result of Code.first
Choose = Callable[[Backend, Match, Code], bool]


def symbol_of(backend: str, match: Match, code: Code) -> str:
    """Symbol kilnx_<backend>_<pattern>_<hash>, equal for equal code in any model.

    The hash covers the source and, with `opens`, the constants that the library prepares at open.
    """
    stem = re.sub(r"[^a-z0-9]+", "_", match.pattern.lower())
    digest = hashlib.sha256(f"{backend}\0{code.source}".encode())
    for value in _constants_at_open(code).values():
        digest.update(f"\0{value.dtype}{value.shape}".encode() + value.tobytes())
    return f"kilnx_{backend}_{stem}_{digest.hexdigest()[:12]}"


def _constants_at_open(code: Code) -> dict[int, Any]:
    """The constants that SYMBOL_open receives, by their index among the operands; none without `opens`."""
    indices = [i for i, name in enumerate(code.operands) if name in code.constants]
    return {i: code.constants[code.operands[i]] for i in indices} if code.opens else {}


def externals(mod: tvm.IRModule) -> dict[str, Any]:
    """The entries of the module's attribute `kiln.externals`, by symbol."""
    text = mod.attrs.get(EXTERNALS) if mod.attrs else None
    return dict(json.loads(str(text))) if text else {}


def _count_readers(variable: relax.Var, calls: list[Any]) -> int:
    """The number of `calls` that read a variable."""
    reads = [[read for arg in call.args for read in getattr(arg, "fields", [arg])] for call in calls]
    return sum(any(read.same_as(variable) for read in arguments) for arguments in reads)


class _Replacement:
    """A match with its generated code and the symbol of its function.

    `first`: the replacement that computes the operand PARTS of this one (`Code.first`). Raises KilnError if
    the code names an operand that the pattern does not have.
    """

    def __init__(self, backend: Backend, match: Match, code: Code) -> None:
        self.match, self.code = match, code
        self.symbol = symbol_of(backend.name, match, code)
        self.first = None if code.first is None else _Replacement(backend, match, code.first)
        operands = [*match.operands, *([] if code.first is None else [PARTS])]
        missing = [name for name in code.operands if name not in operands]
        if missing:
            raise KilnError(
                f"backend '{backend.name}': pattern '{match.pattern}' has no operand '{missing[0]}'; "
                f"it has: {', '.join(match.operands)}"
            )

    def call(self, visit: Callable[[Any], Any]) -> Any:
        """The call that replaces the subgraph; `visit` rewrites the expression of an operand."""
        arguments = []
        for name in self.code.operands:
            if self.first is not None and name == PARTS:
                arguments.append(self.first.call(visit))
                continue
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
            values = [tirx.IntImm("int64", n) if isinstance(n, int) else n for n in numbers]
            arguments.append(relax.ShapeExpr(values))
        output = self.match.output
        dtype = self.code.dtypes.get("output", output.dtype)
        if code.shape is not None:
            values = [tirx.IntImm("int64", n) if isinstance(n, int) else n for n in code.shape]
            return relax.call_dps_packed(
                self.symbol, relax.Tuple(arguments), relax.TensorType(relax.ShapeExpr(values), dtype)
            )
        ty = relax.TensorType(output.expr.ty.shape, dtype)
        result = relax.call_dps_packed(self.symbol, relax.Tuple(arguments), ty)
        return result if dtype == output.dtype else relax.op.astype(result, output.dtype)

    def describe(self, backend: Backend) -> dict[str, Any]:
        """The symbol's entry in `kiln.externals`."""
        source = self.code.source + (guard(len(_constants_at_open(self.code))) if self.code.opens else "")
        return {
            "backend": backend.name,
            "key": self.match.key,
            "ops": list(self.match.ops),
            "anchor": self.match.anchor["attrs"],
            "parallel": self.code.tasks is not None,
            "in_place": [list(self.code.operands).index(name) for name in self.code.in_place],
            "reads_past": self.code.reads_past,
            "depth": self._depth(),
            "opens": list(_constants_at_open(self.code)) if self.code.opens else None,
            "scratch": self.code.scratch,
            "block": None if self.code.launch is None else list(self.code.launch.block),
            "ptx": self._ptx(),
            "source": re.sub(r"\bSYMBOL(?=\b|_)", self.symbol, source),
        }

    def _depth(self) -> int:
        """Multiply-adds for one element of the function's own result."""
        if self.first is not None:
            return 0
        return self.match.depth if self.code.shape is None else self.match.depth // int(self.code.shape[0])

    def _ptx(self) -> dict[str, Any]:
        """The fields of ExternalCode for PTX; none for other code."""
        launch = self.code.launch
        return {"ptx": True, "dynamic_bytes": launch.dynamic_bytes} if launch and launch.ptx else {}


@mutator
class _SubgraphRewriter(relax.PyExprMutator):  # type: ignore[misc]  # tvm is untyped
    """Replaces calls by extern calls. `replacements`: by the last call of each subgraph."""

    def __init__(self, mod: tvm.IRModule, replacements: Mapping[Any, _Replacement]) -> None:
        super().__init__(mod)
        self.replacements = replacements

    def visit_call_(self, call: Any) -> Any:
        match = self.replacements.get(call)
        return self.visit_expr_post_order(call) if match is None else match.call(self.visit_expr)


class Partition:
    """The passes of one build. `choose` decides for each match whether the library computes it."""

    def __init__(self, facts: TargetFacts, choose: Choose = lambda *_: True) -> None:
        self.facts, self.choose = facts, choose

    def graph(self, backend: Backend) -> Callable[[tvm.IRModule], tvm.IRModule]:
        """The pass that replaces the subgraphs which a backend's graph patterns match."""

        def run(mod: tvm.IRModule) -> tvm.IRModule:
            mod = backend.prepare(mod)
            main = mod["main"]
            uses, definitions = count_uses(mod), relax.analysis.get_var2val(main)
            bindings = [binding for block in main.body.blocks for binding in block.bindings]
            variables = {binding.value: binding.var for binding in bindings}
            patterns = backend.patterns()
            replacements: dict[Any, _Replacement] = {}
            in_subgraphs: set[Any] = set()

            def may_be_replaced(call: Any, subgraph: list[Any]) -> bool:
                """Whether all calls of `subgraph` but `call` are read only in it, and are in no other one."""
                inner = [other for other in subgraph if not other.same_as(call)]
                return not any(
                    other in in_subgraphs
                    or uses.get(variables.get(other)) != _count_readers(variables.get(other), subgraph)
                    for other in inner
                )

            def first_subgraph(call: Any) -> tuple[Match, Code, list[Any]] | None:
                """The match, code and calls of the first pattern that ends in `call`, and has code."""
                for pattern in patterns:
                    result = pattern.match(call, definitions, variables)
                    if result is not None and may_be_replaced(call, result[1]):
                        code = backend.generate(result[0], self.facts)
                        if code is not None:
                            return result[0], code, result[1]
                return None

            for binding in reversed(bindings):
                call = binding.value
                if not isinstance(call, relax.Call) or call in in_subgraphs:
                    continue
                subgraph = first_subgraph(call)
                if subgraph is not None:
                    match, code, calls = subgraph
                    # A subgraph that `choose` leaves to Kiln is left completely: no shorter pattern is tried.
                    in_subgraphs.update(calls)
                    if self.choose(backend, match, code):
                        replacements[call] = _Replacement(backend, match, code)
            return self._rewritten(mod, backend, replacements)

        return run

    def groups(self, backend: Backend, values: Mapping[str, Any]) -> Callable[[tvm.IRModule], tvm.IRModule]:
        """The pass that replaces fused functions which a backend's groups match, after lowering.

        `values`: constants by the name of their variable in `main`.
        """

        def run(mod: tvm.IRModule) -> tvm.IRModule:
            constants = {param: values.get(param.name) for param in mod["main"].params}
            replacements: dict[Any, _Replacement] = {}
            for call in [binding.value for block in mod["main"].body.blocks for binding in block.bindings]:
                if operator(call) != "relax.call_tir" or not isinstance(call.ty, relax.TensorType):
                    continue
                arguments = call.args[1].fields
                if not all(isinstance(argument.ty, relax.TensorType) for argument in arguments):
                    continue
                operands = [Operand.of(argument, constants.get(argument)) for argument in arguments]
                for group in backend.groups():
                    match = group.read(mod[call.args[0]], [*operands, Operand.of(call)])
                    code = None if match is None else backend.generate(match, self.facts)
                    if match is not None and code is not None:
                        if self.choose(backend, match, code):
                            replacements[call] = _Replacement(backend, match, code)
                        break
            return self._rewritten(mod, backend, replacements)

        return run

    def _rewritten(
        self, mod: tvm.IRModule, backend: Backend, replacements: Mapping[Any, _Replacement]
    ) -> tvm.IRModule:
        """The module with the calls replaced, and its attributes with the code of the new symbols."""
        if not replacements:
            return mod
        modules = list(mod.attrs[MODULES]) if mod.attrs and MODULES in mod.attrs else []
        records = externals(mod)
        rewriter = _SubgraphRewriter(mod, replacements)
        variable = mod.get_global_var("main")
        rewriter.builder_.update_func(variable, rewriter.visit_expr(mod["main"]))
        result = relax.transform.DeadCodeElimination()(rewriter.builder_.get())
        create = tvm_ffi.get_global_func("runtime.CSourceModuleCreate")
        in_order = [
            part
            for replacement in replacements.values()
            for part in (replacement.first, replacement)
            if part is not None
        ]
        for replacement in in_order:
            if replacement.symbol not in records:
                records[replacement.symbol] = replacement.describe(backend)
                modules.append(create(records[replacement.symbol]["source"], "c", [replacement.symbol], []))
        return result.with_attrs({MODULES: modules, EXTERNALS: json.dumps(records, sort_keys=True)})
