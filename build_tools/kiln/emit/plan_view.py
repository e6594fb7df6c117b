"""plan.json checked, and arranged as the templates need it.

The plan comes from another program: whatever would make the generated C read or write outside its memory,
or not compile, is refused here, with the entry's place in plan.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiln.emit import c_text
from kiln.emit.buckets import Selection, selection
from kiln.emit.plan_steps import INT32_MAX, Port, Step, StepMaker, require
from kiln.errors import KilnError

_MAX_DIMS = 8  # KILN_MAX_DIMS of kiln.h
_OWN = "buckets|dimensions|hash|run_step|select_bucket"  # static names in plan.c
_STORAGES = ("embedded", "section", "file")


@dataclass(frozen=True)
class Bucket:
    name: str
    arena_bytes: int
    steps: list[Step]


@dataclass(frozen=True)
class View:
    name: str
    target: str
    hash: str
    threads: str
    inputs: list[Port]
    outputs: list[Port]
    dims: list[dict[str, Any]]
    buckets: list[Bucket]
    selection: Selection | None
    kernels: list[dict[str, Any]]
    params: Mapping[str, Any]

    @property
    def upper(self) -> str:
        return self.name.upper()

    @property
    def arena_bytes(self) -> int:
        return max(bucket.arena_bytes for bucket in self.buckets)

    @property
    def hash_bytes(self) -> list[int]:
        return list(bytes.fromhex(self.hash))


def plan_view(plan: Mapping[str, Any], payload_bytes: int) -> View:
    """Check `plan` against itself and against the size of its parameters. Raises KilnError."""
    try:
        return _view(plan, payload_bytes)
    except KeyError as error:
        raise KilnError(f"plan.json: key {error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise KilnError(f"plan.json: value of a wrong type: {error}") from error


def _view(plan: Mapping[str, Any], payload_bytes: int) -> View:
    require(plan["format"] in (1, 2), "format", plan["format"], "2")
    name = c_text.check_name(plan["name"], "plan.json: name")
    require(plan["threads"] in ("none", "pthread"), "threads", plan["threads"], "none, pthread")
    hexadecimal = re.fullmatch(r"[0-9a-f]{64}", plan["model_hash"]) is not None
    require(hexadecimal, "model_hash", plan["model_hash"], "64 hexadecimal digits")
    params = plan["params"]
    require(
        params["bytes"] == payload_bytes, "params.bytes", params["bytes"], f"{payload_bytes} as in params.raw"
    )
    require(params["storage"] in _STORAGES, "params.storage", params["storage"], ", ".join(_STORAGES))
    if params["storage"] == "section":
        good = re.fullmatch(r"[.A-Za-z_][.A-Za-z0-9_]*", str(params["section"])) is not None
        require(good, "params.section", params["section"], "letters, digits, . and _")

    own = re.fullmatch(r"(step_of|cell_of_dim|(in|out)put_(tensors|\d+_shape|of))(_.*)?|" + _OWN, name)
    require(own is None, "name", name, "any other: the generated source uses this one itself")
    taken = {"session", "inputs", "outputs", "result", "detail", "sizes", name}
    dims = [dict(dim) for dim in plan["dims"]]
    require(len(dims) <= _MAX_DIMS, "dims", len(dims), f"at most {_MAX_DIMS} dimensions")
    for dim in dims:
        where = f"dims '{dim['name']}'"
        limits = f"{dim['min']}..{dim['max']}"
        good = 0 <= dim["min"] <= dim["max"] <= INT32_MAX
        require(good, f"{where}: range", limits, "0 <= min <= max <= 2147483647")
        require(1 <= dim["multiple"] <= INT32_MAX, f"{where}: multiple", dim["multiple"], "1..2147483647")
        dim["c_name"] = c_text.free_name(re.sub(r"\W", "_", f"n_{dim['name']}"), taken)
        taken.add(dim["c_name"])
    ports = [[_port(port, dims, taken) for port in plan[side]] for side in ("inputs", "outputs")]
    require(len(ports[1]) > 0, "outputs", 0, "at least one")
    used = {-1 - size for port in ports[0] for size in port.shape if size < 0}
    for index, dim in enumerate(dims):
        # A dimension that no shape mentions has been made static: it stays in the plan as information only.
        mentioned = any(-1 - index in port.shape for port in ports[1])
        require(index in used or not mentioned, f"dims '{dim['name']}'", "on outputs only", "on an input too")
    symbolic = [dim for index, dim in enumerate(dims) if index in used]
    if len(symbolic) != len(dims):
        return _view(
            {**plan, "dims": symbolic, "buckets": _without(plan["buckets"], symbolic)}, payload_bytes
        )

    kernels = [_kernel(kernel) for kernel in plan["kernels"]]
    symbols = {kernel["symbol"]: kernel for kernel in kernels}
    require(len(symbols) == len(kernels), "kernels", "a symbol twice", "each once")
    require(len(plan["buckets"]) > 0, "buckets", 0, "at least one")
    maker = StepMaker(symbols, ports[0], ports[1], dims, params, plan["threads"] == "pthread")
    buckets = []
    for number, bucket in enumerate(plan["buckets"]):
        c_text.check_name(bucket["name"] + "_", f"plan.json: buckets[{number}].name")
        steps = [maker.step(bucket, number, at) for at in range(len(bucket["steps"]))]
        buckets.append(Bucket(bucket["name"], bucket["arena_bytes"], steps))
    distinct = len({bucket.name.upper() for bucket in buckets}) == len(buckets)
    require(distinct, "buckets", "a name twice", "each once, upper and lower case being the same")
    called = {step.symbol for bucket in buckets for step in bucket.steps}
    return View(
        name, plan["target"], plan["model_hash"], plan["threads"], ports[0], ports[1], dims, buckets,
        selection(dims, plan["buckets"]), [k for k in kernels if k["symbol"] in called], params,
    )  # fmt: skip


def _without(buckets: Sequence[Mapping[str, Any]], dims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The buckets, each with the dimensions of `dims` only."""
    names = {dim["name"] for dim in dims}
    return [{**b, "dims": {k: v for k, v in b["dims"].items() if k in names}} for b in buckets]


def _port(port: Mapping[str, Any], dims: Sequence[Mapping[str, Any]], taken: set[str]) -> Port:
    where = f"plan.json: '{port['name']}'"
    index = {dim["name"]: number for number, dim in enumerate(dims)}
    shape = []
    for size in port["shape"]:
        if isinstance(size, str) and size not in index:
            raise KilnError(f"{where}: dimension '{size}', allowed: {', '.join(index) or 'sizes only'}")
        if not isinstance(size, str) and not 0 <= size <= INT32_MAX:
            raise KilnError(f"{where}: size {size}, allowed 0..{INT32_MAX}")
        shape.append(-1 - index[size] if isinstance(size, str) else size)
    greatest = [dims[-1 - size]["max"] if size < 0 else size for size in shape]
    elements = 1
    for size in greatest:
        elements *= size
    c_name = c_text.free_name(c_text.check_name(port["c_name"] + "_", where)[:-1], taken)
    taken.add(c_name)
    shown = ", ".join(str(size) for size in port["shape"])
    layout = f" {port['layout']}" if port.get("layout") else ""
    return Port(
        port["name"], c_name, c_text.c_type(port["dtype"], where), c_text.dl_type(port["dtype"], where),
        shape, f"({shown}){layout}", greatest, elements,
        elements * c_text.element_bytes(port["dtype"], where),
        port.get("quant"), any(size < 0 for size in shape),
    )  # fmt: skip


def _kernel(kernel: Mapping[str, Any]) -> dict[str, Any]:
    """Symbol, parameter types, whether it is parallel, and its operators as one comment."""
    symbol = c_text.check_name(kernel["symbol"], "plan.json: kernels")
    types = []
    for arg in kernel["args"]:
        base = c_text.c_type(arg["dtype"], f"plan.json: kernel '{symbol}'")
        types.append(base if arg.get("scalar") else f"{'const ' if arg['const'] else ''}{base} *")
    return {
        "symbol": symbol,
        "types": types,
        "args": kernel["args"],
        "parallel": bool(kernel["parallel"]),
        "ops": " + ".join(op["name"] for op in kernel.get("ops", [])),
    }
