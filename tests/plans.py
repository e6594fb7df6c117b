"""Plans and size records for tests, which give only the entries that matter to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.emit.size_schema import SizeFile
from kiln.lower.schema import TensorRecord
from kiln.plan.schema import Plan, parse_plan


def plan_of(**entries: Any) -> Plan:
    """A plan with these entries of plan.json; its other entries are of a model that computes nothing."""
    port = {"name": "y", "c_name": "y", "dtype": "float32", "shape": [1]}
    fields: dict[str, Any] = {
        "format": 2,
        "name": "m",
        "target": "any",
        "threads": "none",
        "inputs": [],
        "outputs": [port],
        "params": {"bytes": 0, "storage": "embedded"},
        "kernels": [],
        "buckets": [{"steps": []}],
        "model_hash": "0" * 64,
        **entries,
    }
    buckets = [
        {"name": f"bucket{number}", "arena_bytes": 0, **bucket}
        for number, bucket in enumerate(fields["buckets"])
    ]
    kernels = [{"args": [], "parallel": False, **kernel} for kernel in fields["kernels"]]
    return parse_plan({**fields, "kernels": kernels, "buckets": buckets})


def tensor_record(
    name: str, size: int = 64, kind: Any = "activation", alias: str | None = None
) -> TensorRecord:
    """A tensor of steps.json with `size` bytes."""
    return TensorRecord(name=name, bytes=size, kind=kind, alias=alias, dtype="uint8", shape=[size])


def size_file(
    arenas: Sequence[int] = (100,), linked: Mapping[str, Any] | None = None, **more: Any
) -> SizeFile:
    """size.json with a bucket for each of `arenas`, in bytes; `linked`: figures of a linked program."""
    buckets = [
        {
            "name": f"bucket{number}", "strategy": "exact", "dims": {}, "arena_bytes": size, "steps": 1,
            "lower_bound_bytes": size, "case_of": None, "params_bytes": 0,
        }
        for number, size in enumerate(arenas)
    ]  # fmt: skip
    content: dict[str, Any] = {
        "model": "tiny", "target": "aarch64", "params": {"bytes": 0, "storage": "embedded"}, "several": [],
        "state_bytes": 0, "buckets": buckets,
    }  # fmt: skip
    if linked is not None:
        none = {
            "sections": dict.fromkeys(("text", "rodata", "data", "bss"), 0), "flash_bytes": 0, "ram_bytes": 0,
            "code": {}, "kernels": [], "buckets": [], "variants": [],
        }  # fmt: skip
        content["linked"] = {**none, **linked}
    return SizeFile.model_validate({**content, **more})
