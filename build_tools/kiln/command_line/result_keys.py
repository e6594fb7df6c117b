"""Each command's answer with --json: the keys that `data` always has, and the files that results name.

`kiln schema result` requires them, docs/json.md explains them, and a test runs every command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ResultKeys:
    """Keys of `data`, of which none means that the result has no data, and purposes of `files`."""

    data: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


_INSTALLED = ResultKeys(
    ("model", "device", "folder", "in_use", "before", "installed", "damaged", "differs_in"), ("state",)
)
_TIMES = ("model", "target", "device", "runner", "time_unit", "runs", "steps", "emulated")
# Goals that a linked program (program=) has as well, with figures of their own, require what both have.
RESULT_KEYS: Mapping[str, ResultKeys] = {
    "build": ResultKeys(
        ("name", "target", "files", "inputs", "outputs", "dims", "buckets", "params", "model_hash", "tools"),
        ("manifest", "folder", "archive", "interface"),
    ),
    "test": ResultKeys(("device",), ("results",)),
    "run": ResultKeys(("device",)),
    "plan": ResultKeys(("name", "target", "buckets", "kernels", "params", "untuned"), ("plan",)),
    "package": ResultKeys(("kind", "version", "targets", "bytes", "sha256"), ("package", "figures")),
    "size": ResultKeys(("model", "target", "buckets", "linked", "params", "budgets"), ("figures",)),
    "image": ResultKeys(
        ("model", "target", "bytes", "tables_bytes", "arena_bytes", "align", "params_bytes", "interface"),
        ("image", "figures"),
    ),
    "joint": ResultKeys(
        ("name", "target", "models", "flash_bytes", "params_bytes", "arena_bytes", "kernels"),
        ("folder", "figures"),
    ),
    "tune": ResultKeys(),
    "bench": ResultKeys(_TIMES, ("times",)),
    "profile": ResultKeys((*_TIMES, "peak_gflops"), ("times", "page", "trace")),
    "report": ResultKeys(("model", "time_unit", "bytes", "buckets")),
    "flash": ResultKeys(("device", "bytes", "seconds"), ("results",)),
    "rollback": _INSTALLED,
    "status": ResultKeys(("device",)),
    "devices": ResultKeys(("devices",), ("devices",)),
    "schema": ResultKeys(),
    "quantise": ResultKeys(("model", "float", "quantised", "layers", "frontier", "steps"), ("model",)),
    "evaluate": ResultKeys(("samples", "reference", "bundle", "snr_db", "disagreements")),
    "compare": ResultKeys(("model", "target", "runner", "outputs", "first", "tensors"), ("tensors",)),
    "reduce": ResultKeys(("nodes", "of_nodes", "failure"), ("model",)),
    "traffic": ResultKeys(("runs", "sizes", "missed", "contents"), ("traffic",)),
    "sign": ResultKeys(("release", "key")),
    "verify": ResultKeys(("release", "key")),
    "sbom": ResultKeys(("components",), ("cyclonedx", "spdx")),
    "publish": ResultKeys(("version", "bundles")),
    "fetch": ResultKeys(("release", "key")),
    "list": ResultKeys(("kind", "entries")),
    "completion": ResultKeys(("shell", "script")),
    "version": ResultKeys(("version",)),
}


def conditions() -> list[dict[str, Any]]:
    """Conditions of JSON Schema on a result: `goal` is known, and decides what `data` and `files` have.

    `data` may be null where its file was removed after the command had written it.
    """
    rules: list[dict[str, Any]] = [{"properties": {"goal": {"enum": list(RESULT_KEYS)}}}]
    for goal, keys in RESULT_KEYS.items():
        needed: dict[str, Any] = {}
        if keys.data:
            needed["data"] = {"type": ["object", "null"], "required": list(keys.data)}
        if keys.files:
            needed["files"] = {"required": list(keys.files)}
        if needed:
            rules.append({"if": {"properties": {"goal": {"const": goal}}}, "then": {"properties": needed}})
    return rules
