"""The cost of each bucket: bytes of its own, and bytes that it shares with others."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kiln.config import load_target, target_config
from kiln.config.sizes import ranges_text
from kiln.emit.size_schema import CodeByPart, LinkedFigures, LinkedKernel, LinkedSections, SizeFile
from kiln.plan.schema import AcceptedSizes, Plan
from kiln.report.buckets import code_rows, has_buckets, plan_rows
from kiln.report.html import PageContent, render
from kiln.report.measure import plan_figures
from kiln.report.size import print_figures, software_floats
from plans import plan_of


def part(least: int, most: int, multiple: int = 1) -> dict[str, int]:
    return {"min": least, "max": most, "multiple": multiple}


def bucket(name: str, strategy: str, kernels: list[str], when: Any = None, **dims: Any) -> dict[str, Any]:
    read = {"at": "params", "offset": 64, "bytes": 40}
    return {
        "name": name,
        "strategy": strategy,
        "dims": dims,
        "when": when,
        "arena_bytes": 64 * len(kernels),
        "lower_bound_bytes": 64,
        "steps": [
            {
                "kernel": kernel,
                "extent": ["*", "batch", 4],
                "label": kernel,
                "attrs": {},
                "macs": 10,
                "args": [
                    {"at": "input", "index": 0, "offset": 0, "bytes": 16},
                    read,
                    {"at": "params", "offset": 128 * number, "bytes": 24},
                    {"at": "dim", "expr": ["//", "width", 2]},
                    {"at": "output", "index": 0, "offset": 0, "bytes": 16},
                ],
            }
            for number, kernel in enumerate(kernels, start=1)
        ],
        "tensors": [],
    }


def plan() -> Plan:
    const, number = {"dtype": "float32", "const": True}, {"dtype": "int32", "const": True, "scalar": True}
    args = [const, const, const, number, {"dtype": "float32", "const": False}]
    about = {"dtype": "float32", "layout": None, "quant": None, "bytes": 16}
    return plan_of(
        inputs=[{"name": "x", "c_name": "x", "shape": ["batch", "width"], **about}],
        outputs=[{"name": "y", "c_name": "y", "shape": ["batch", ["//", "width", 2]], **about}],
        dims=[{"name": "batch", **part(1, 4)}, {"name": "width", **part(8, 64, 8)}],
        params={"bytes": 300, "align": 64, "storage": "embedded", "section": None, "tensors": []},
        kernels=[
            {"symbol": f"k_{name}", "args": args, "parallel": True, "ops": [{"name": name}], "flops": 20}
            for name in "abc"
        ],
        buckets=[
            bucket("one", "exact", ["k_a", "k_b"], batch=part(1, 1), width=part(8, 8, 8)),
            bucket("many", "pad", ["k_a", "k_c", "k_c"], batch=part(1, 4), width=part(8, 64, 8)),
            bucket(
                "many_ones",
                "pad",
                ["k_a"],
                {"bucket": 1, "all": [{"input": 0, "value": "ones"}]},
                batch=part(1, 4),
                width=part(8, 64, 8),
            ),
        ],
    )


LINKED = {"k_a": 100, "k_b": 10, "k_c": 1000}


def size() -> SizeFile:
    linked = LinkedFigures(
        sections=LinkedSections(text=1200, rodata=300, data=0, bss=0),
        flash_bytes=1500,
        ram_bytes=0,
        code=CodeByPart(kernels=1110, plan=20, runtime=10),
        kernels=[LinkedKernel(symbol=s, label=s, bytes=b) for s, b in LINKED.items()],
        buckets=code_rows(plan(), LINKED),
        variants=[],
    )
    return plan_figures(plan(), "aarch64").model_copy(update={"linked": linked})


def test_code_that_is_shared_counts_in_each_and_once_in_all() -> None:
    rows = code_rows(plan(), LINKED)
    assert [(row.name, row.code_bytes, row.own_code_bytes) for row in rows] == [
        ("one", 110, 10),
        ("many", 1100, 1000),
        ("many_ones", 100, 0),
    ]


def test_parameters_that_a_bucket_reads_count_once_in_it() -> None:
    assert [row.params_bytes for row in plan_rows(plan())] == [40 + 2 * 24, 40 + 3 * 24, 40 + 24]


def test_case_and_sizes() -> None:
    one, many, ones = plan_rows(plan())
    assert (one.case_of, many.case_of, ones.case_of) == (None, None, "many")
    assert ranges_text(one.model_dump()["dims"]) == "batch 1, width 8"
    assert ranges_text(many.model_dump()["dims"]) == "batch 1..4, width 8..64 by 8"
    assert has_buckets([one, many]) and has_buckets([many]) and not has_buckets([one])
    assert not has_buckets([one.model_copy(update={"dims": {"batch": AcceptedSizes(min=1, max=1)}})])
    assert ranges_text({"batch": part(1, 1)}) == "batch 1"


def test_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    print_figures(size())
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if "many" in line and "1100" in line)
    assert "pad" in row and "112" in row and "1000" in row
    assert any("all, each once" in line and "300" in line and "1110" in line for line in lines)
    assert any("case of many" in line for line in lines)


def test_the_page() -> None:
    text = render(
        PageContent(
            plan=plan(),
            target=target_config(load_target("aarch64")),
            size=size(),
            padding={"buckets": [{"name": "many", "mean_padding": 0.4375}]},
        )
    )
    assert '<section id="buckets">' in text and 'href="#many"' in text and 'id="many"' in text
    assert "batch × width // 2" in text and "43.8 %" in text and "1\u202f100" in text
    assert "case of many" in text and "batch * 4" in text


def test_a_static_model_has_no_table_of_buckets() -> None:
    only = bucket("static", "exact", ["k_a"], batch=part(1, 1), width=part(8, 8))
    static = plan().model_copy(update={"buckets": plan_of(buckets=[only]).buckets})
    figures = plan_figures(static, "aarch64")
    text = render(PageContent(plan=static, target=target_config(load_target("aarch64")), size=figures))
    assert 'id="buckets"' not in text and "#buckets" not in text


@pytest.mark.parametrize(
    ("target", "floats", "told"),
    [
        ("cortex_m0plus", None, ""),
        ("cortex_m0plus", 0, ""),
        ("cortex_m0plus", 5300, "computes on floats, .* 5,300 bytes of flash, .* quantised to int8"),
        ("cortex_m4", 5300, "computes on float64, .* 5,300 bytes of flash, .* float32 is computed by"),
        ("riscv32_imafc", 5300, "computes on float64, "),
    ],
)
def test_what_floats_in_software_cost_is_said(target: str, floats: int | None, told: str) -> None:
    linked = LinkedFigures(
        sections=LinkedSections(text=1, rodata=1, data=1, bss=1),
        flash_bytes=2,
        ram_bytes=2,
        code=CodeByPart(floats=floats),
        kernels=[],
        buckets=[],
        variants=[],
    )
    figures = plan_figures(plan(), target)
    assert software_floats(figures, load_target(target)) == ""
    warning = software_floats(figures.model_copy(update={"linked": linked}), load_target(target))
    assert bool(re.search(told, warning)) and bool(warning) == bool(told)
