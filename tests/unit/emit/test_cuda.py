"""What emit-source makes of a plan whose kernels run on a GPU, and which launches it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from c_programs import WARNINGS, need, run
from emitted import PAYLOAD, Plan, make_plan
from kiln.emit.headers import include_flags
from kiln.emit.source import emit
from kiln.errors import KilnError
from kiln.plan.schema import parse_plan


def gpu_plan() -> Plan:
    """The plan of emitted.py, the first bucket with launches that depend on the batch, the others without."""
    plan = make_plan(threads="none")
    plan["cuda"] = {"archs": ["sm_75", "sm_90"], "ptx": False}
    for kernel in plan["kernels"]:
        kernel["parallel"] = False
    for number, bucket in enumerate(plan["buckets"]):
        blocks = ["//", ["+", "batch", 31], 32] if number == 0 else 1
        for step in bucket["steps"]:
            step["launch"] = {"grid": [blocks, 1, 1], "block": [32, 2, 1]}
            if number > 0:
                step["args"] = [{"at": "dim", "expr": 7} if a["at"] == "dim" else a for a in step["args"]]
    return plan


def test_the_plan_compiles_and_says_what_is_launched(tmp_path: Path) -> None:
    files = emit(parse_plan(gpu_plan()), PAYLOAD)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    gcc = need("gcc")
    run([gcc, *WARNINGS, *include_flags(), f"-I{tmp_path}", "-fsyntax-only", str(tmp_path / "tiny_plan.c")])
    source, header = str(files["tiny_plan.c"]), str(files["tiny.h"])
    buckets = len(gpu_plan()["buckets"])
    assert f"has_graph[] = {{{', '.join(['0', *['1'] * (buckets - 1)])}}};" in source
    assert "static const uint32_t grid_and_block[] = {1, 1, 1, 32, 2, 1};" in source
    assert "(const void *)(intptr_t)((int32_t)frame->dims[0]), /* batch */" in source
    assert '.archs = "sm_75, sm_90",' in source
    assert "#define TINY_ARENA_BYTES 0u" in header, "the host needs none"
    assert f"#define TINY_GPU_ARENA_BYTES {max(b['arena_bytes'] for b in gpu_plan()['buckets'])}u" in header


@pytest.mark.parametrize(
    ("grid", "block", "told"),
    [
        ([0, 1, 1], [32, 1, 1], "launch.grid: 0..0, allowed: 1..2147483647"),
        ([1, 65536, 1], [32, 1, 1], "launch.grid: 65536..65536, allowed: 1..65535"),
        ([["-", "batch", 2], 1, 1], [32, 1, 1], "launch.grid: 0..0, allowed: 1..2147483647"),
        ([1, 1], [32, 1, 1], "launch.grid: 2 entries, allowed: at least 3"),
        ([1, 1, 1], [32, 1, 65], "launch.block: 65..65, allowed: 1..64"),
        ([1, 1, 1], [64, 32, 1], "launch.block: 2048 threads, allowed: at most 1024"),
        ([["*", "seq", 2], 1, 1], [32, 1, 1], "launch.grid: dimension 'seq'"),
    ],
)
def test_launches_that_no_gpu_takes_are_refused(grid: Any, block: Any, told: str) -> None:
    plan = gpu_plan()
    plan["buckets"][0]["steps"][0]["launch"] = {"grid": grid, "block": block}
    with pytest.raises(KilnError) as error:
        emit(parse_plan(plan), PAYLOAD)
    assert told in str(error.value)
    assert "buckets[0].steps[0]" in str(error.value)


def test_more_arguments_than_a_launch_holds_are_refused() -> None:
    plan = gpu_plan()
    step, kernel = plan["buckets"][0]["steps"][0], plan["kernels"][0]
    step["args"], kernel["args"] = step["args"][:1] * 65, kernel["args"][:1] * 65
    with pytest.raises(KilnError, match=r"args: 65, allowed: at most 64 on a GPU"):
        emit(parse_plan(plan), PAYLOAD)
