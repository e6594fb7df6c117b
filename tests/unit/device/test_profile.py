"""The goal `profile`: the core's peak, the figures of each step, and the page with its picture."""

from __future__ import annotations

import json
import platform
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kiln.config import load_target
from kiln.device.check import bench
from kiln.device.check.bench import TimedRuns
from kiln.device.check.peak import measure_peak, peak_program
from kiln.device.check.runners import runner_for
from kiln.device.link import PROGRAMS
from kiln.lower.schema import VariantFeatures
from kiln.plan.schema import CpuVariants
from kiln.report.origins import SourceNode
from kiln.report.profile import described, render, run
from kiln.report.trace import trace
from kiln.stages.use import ProfileStage
from kiln.toolchain import compiler_command
from kiln.toolchain import run as run_tool
from plans import plan_of

KERNELS = [
    {
        "symbol": "k0",
        "family": "conv2d",
        "flops": 0,
        "args": [{"dtype": "float32", "const": True}, {"dtype": "float32", "const": True}],
        "ops": [
            {"name": "nn.conv2d", "attrs": {"strides": [2, 2], "groups": 1, "out_dtype": None}},
            {"name": "<add>", "attrs": {}},
        ],
    },
    {
        "symbol": "k1",
        "family": "loops",
        "flops": 8,
        "args": [{"dtype": "int8", "const": False}],
        "ops": [{"name": "add"}],
    },
]
STEPS = [
    {
        "kernel": "k0",
        "label": "conv2d+<add>",
        "macs": 1_500_000,
        "args": [{"at": "input", "index": 0, "bytes": 192}, {"at": "params", "offset": 0, "bytes": 128}],
    },
    {"kernel": "k1", "label": "add", "macs": 0, "args": [{"at": "arena", "offset": 0, "bytes": 16}]},
]
PLAN = plan_of(
    dims=[{"name": "n", "min": 1, "max": 4, "multiple": 1}],
    kernels=KERNELS,
    buckets=[{"name": "small", "steps": STEPS}, {"name": "not_run", "steps": STEPS}],
)


def figures() -> dict[str, Any]:
    """Figures of two steps that took 300 and 100 µs for n = 3, and half as long on two threads."""
    alone = TimedRuns({"small": [400_000]}, {"small": [300_000, 100_000]}, {"small": [3]})
    both = TimedRuns({"small": [200_000]}, {"small": [150_000, 50_000]}, {"small": [3]})
    steps = bench._steps(PLAN, {1: alone, 2: both}, 2, peak=100.0)
    return {
        "model": "net",
        "target": "board",
        "runner": "a <board>",
        "variant": "",
        "device": {"cpu": "A72"},
        "time_unit": "ms",
        "rate_unit": "GFLOP/s",
        "peak_gflops": 100.0,
        "threads": 2,
        "emulated": False,
        "runs": [{"bucket": "small", "threads": 1, "runs": 1, **bench._summary([400_000])}],
        "steps": steps,
    }


def test_a_step_says_what_it_does_and_how_near_to_the_peak_it_comes() -> None:
    first, second = figures()["steps"]
    assert (first["index"], first["label"], first["family"]) == (0, "conv2d+<add>", "conv2d")
    assert first["ops"][0] == {
        "name": "nn.conv2d",
        "attrs": {"strides": [2, 2], "groups": 1, "out_dtype": None},
    }
    assert first["operations"] == 2 * 3 * 500_000
    assert first["rate"] == pytest.approx(10.0) and first["of_peak"] == pytest.approx(0.1)
    assert first["share"] == pytest.approx(0.75) and second["share"] == pytest.approx(0.25)
    assert (first["params_bytes"], first["read_bytes"], second["written_bytes"]) == (128, 192, 16)
    assert first["time"] == pytest.approx(0.3) and first["time_threads"] == pytest.approx(0.15)
    assert second["of_peak"] is None  # integers: the peak is one of float32


@pytest.mark.parametrize(("sizes", "counted"), [([4, 9], True), ([3, 9], False)])
def test_a_step_has_no_rate_at_smaller_sizes_than_its_operations_are_counted_for(
    sizes: list[int], counted: bool
) -> None:
    dims = [
        {"name": "n", "min": 1, "max": 4, "multiple": 1},
        {"name": "m", "min": 1, "max": 9, "multiple": 1},
    ]
    accepted = {"n": {"min": 1, "max": 4}, "m": {"min": 1, "max": 9}}
    bucket = {"name": "any", "strategy": "dynamic", "dims": accepted, "steps": STEPS}
    plan = plan_of(dims=dims, kernels=KERNELS, buckets=[bucket])
    timed = TimedRuns({"any": [400_000]}, {"any": [300_000, 100_000]}, sizes={"any": sizes})
    first, _ = bench._steps(plan, {1: timed}, 1, peak=100.0)
    assert bool(first["operations"]) is bool(first["rate"]) is counted
    assert (first["of_peak"] is not None) is counted


def test_operations_and_bytes_are_those_of_all_calls_of_a_run() -> None:
    """A step in a loop is called in each iteration, one in a branch that was not taken never."""
    once, often = (
        bench.steps_of(PLAN, [3e-4, 1e-4], 0, calls) for calls in ([1, 1], [7, 0])
    )  # fmt: skip
    assert [step.operations for step in often] == [7 * once[0].operations, 0]
    assert [step.bytes for step in often] == [7 * once[0].bytes, 0]


class Cells(HTMLParser):
    """The words of every row of the page's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows and data.strip():
            self.rows[-1].append(data.strip())


def test_the_page_shows_families_and_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "profile.json").write_text(json.dumps({**figures(), "variant": "v4"}))
    out = tmp_path / "net.profile.html"
    variants = [VariantFeatures(name=name, features=[]) for name in ("v3", "v4")]
    plan = PLAN.model_copy(update={"cpu": CpuVariants(arch="x86_64", variants=variants)})
    (tmp_path / "plan.json").write_text(plan.model_dump_json(exclude_unset=True))
    args = ProfileStage(
        profile=tmp_path / "profile.json", plan=tmp_path / "plan.json", out=out, trace=tmp_path / "t.json"
    )
    run(args)
    assert capsys.readouterr().out.startswith(str(out))
    text = out.read_text()
    assert "a &lt;board&gt;, variant <b>v4</b> of v3, v4" in text
    assert "<add>" not in text and "a &lt;board&gt;" in text  # names are text, not markup
    page = Cells()
    page.feed(text)
    assert ["conv2d", "1", "0.3", "75.0 %", "10.0 %", "× 2.00"] in page.rows
    row = next(row for row in page.rows if row[:2] == ["0", "conv2d"])
    assert "strides=[2,2]" in row and "groups=1" not in row and "k0" in row
    assert row[-6:] == ["0.3", "75.0 %", "3 million", "10.0", "10.0 %", "× 2.00"]


def test_the_trace_has_each_step_on_one_thread_and_on_all() -> None:
    """Steps follow each other from time 0, in microseconds; names of rows come as metadata."""
    file = trace(figures())
    assert json.loads(json.dumps(file)) == file
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in file["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert rows == {(1, 1): "1 thread", (1, 2): "2 threads"}
    steps = [event for event in file["traceEvents"] if event["ph"] == "X"]
    assert [(event["tid"], event["ts"], event["dur"]) for event in steps] == [
        (1, 0.0, 300.0),
        (1, 300.0, 100.0),
        (2, 0.0, 150.0),
        (2, 150.0, 50.0),
    ]
    first = steps[0]
    assert (first["name"], first["cat"]) == ("conv2d + <add>", "conv2d")
    assert first["args"]["kernel"] == "k0" and first["args"]["conv2d strides"] == [2, 2]
    assert first["args"]["rate"] == pytest.approx(10.0)
    assert "conv2d out_dtype" not in first["args"]
    assert file["otherData"]["device"] == {"cpu": "A72"}


def test_the_trace_names_the_operator_and_no_rate_where_operations_are_not_counted() -> None:
    """A product is no convolution, though the same code computes both; an own operator has no known rate."""
    found = figures()
    found["steps"][0]["ops"][0]["name"] = "matmul"
    found["steps"][1].update(ops=[], family="own", operations=0, rate=0.0)
    product, own = [event for event in trace(found)["traceEvents"] if event["ph"] == "X"][:2]
    assert (product["cat"], product["args"]["family"]) == ("matmul", "conv2d")
    assert own["cat"] == "own" and not {"operations", "rate"} & own["args"].keys()


def test_steps_have_the_tensors_and_the_nodes_of_the_file() -> None:
    """Of a step whose kernel is not the timed one nothing is said."""
    nodes = [
        SourceNode("stem/<conv>", "Conv", ("x",), ("t",), 4),
        SourceNode("sum", "Add", ("t",), ("y",), 4),
    ]
    kernel = {**KERNELS[0], "args": [
        {"dtype": "float32", "const": True}, {"dtype": "float32", "const": True},
        {"dtype": "float32", "const": False},
    ]}  # fmt: skip
    arguments = [
        {"at": "input", "index": 0, "bytes": 192, "shape": ["n", 48]},
        {"at": "params", "offset": 0, "bytes": 128, "shape": [8, 4]},
        {"at": "arena", "offset": 0, "bytes": 16, "shape": [4]},
    ]
    plan = plan_of(
        dims=[{"name": "n", "min": 1, "max": 4, "multiple": 1}],
        kernels=[kernel, KERNELS[1]],
        buckets=[{"name": "small", "steps": [{**STEPS[0], "args": arguments}, STEPS[1]]}],
    )
    found = described(figures(), plan, nodes)
    first = found["steps"][0]
    assert first["reads"] == ["float32 n × 48", "float32 8 × 4"] and first["writes"] == ["float32 4"]
    assert first["nodes"] == ["stem/<conv>"]
    text = render(found)
    assert "stem/&lt;conv&gt;" in text and "float32 n × 48, float32 8 × 4 → float32 4" in text
    event = next(event for event in trace(found)["traceEvents"] if event["ph"] == "X")
    assert (event["args"]["nodes"], event["args"]["writes"]) == ("stem/<conv>", "float32 4")
    other = figures()
    other["steps"][0]["kernel"] = "k7"
    assert described(other, plan, nodes)["steps"][0]["reads"] == []


def test_emulated_times_are_called_so() -> None:
    assert "Emulated" in render({**figures(), "emulated": True, "peak_gflops": None})
    assert "Emulated" not in render(figures())


@pytest.mark.parametrize(
    ("name", "multiply", "register"),
    [
        ("x86_64:v3", "vfmadd", "%ymm"),
        ("x86_64:v4", "vfmadd", "%zmm"),
        ("x86_64_v2:v2", "mulps", "%xmm"),
        ("aarch64:base", "fmla", ".4s"),
        ("aarch64_sve:sve256", "fm", "z"),
        ("riscv64:rvv256", "vfm", "v"),
    ],
)
def test_the_peak_is_measured_with_the_targets_vectors(
    name: str, multiply: str, register: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Machine code says it: how fast it runs depends on what else a machine has to do.

    The loop has one for each accumulator, none of which is on the stack.
    """
    asked: list[str] = []
    monkeypatch.setattr("kiln.device.check.peak.link", lambda target, sources, flags, *_: asked.extend(flags))
    name, _, variant = name.partition(":")
    target = load_target(name).for_variant(variant)
    peak_program(target, tmp_path)
    flags = [flag for flag in asked if not flag.startswith("-Wl,")]
    out = tmp_path / "peak.s"
    run_tool(
        [*compiler_command(target), *flags, "-g0", "-S", str(PROGRAMS / "peak.c"), "-o", str(out)], "peak"
    )
    blocks = [
        block.splitlines() for block in re.split(r"^[.\w$]+:|^\tb\.?ne|^\tjne", out.read_text(), flags=re.M)
    ]
    found = [[line for line in block if multiply in line and register in line] for block in blocks]
    most = max(range(len(found)), key=lambda number: len(found[number]))
    assert len(found[most]) >= (24 if target.vector.registers > 28 else 12)
    assert not [line for line in blocks[most] if "sp" in line]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="its program is for x86-64")
def test_a_peak_is_measured(tmp_path: Path) -> None:
    target = load_target("x86_64_v2")
    assert measure_peak(target, runner_for(target), tmp_path) > 0


def test_the_peak_is_that_of_the_variant_that_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the same machine `v4` has vectors twice as wide as the target's own."""
    target, peaks = load_target("x86_64"), []
    ran = TimedRuns({"small": [400_000]}, {"small": [300_000, 100_000]}, {"small": [3]}, variant="v4")

    def peak(measured: Any, _runner: object, _work: Path) -> float:
        peaks.append(measured.vector.bits)
        return 100.0

    monkeypatch.setattr(bench, "measure", lambda *_: ran)
    monkeypatch.setattr(bench, "measure_peak", peak)
    bundle = SimpleNamespace(name="net", link_program=lambda *_: tmp_path / "program")
    runner = SimpleNamespace(identity={"cores": 1}, unit="ns", description="here")
    bench.profile(cast(Any, bundle), target, PLAN, cast(Any, runner), tmp_path)
    assert target.vector.bits == 256 and peaks == [512]


def test_no_more_threads_than_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that names 4 cores, run where there are others."""
    target = load_target("aarch64")
    assert target.cores == 4
    monkeypatch.setattr(bench.os, "sched_getaffinity", lambda process: {0, 5})
    assert bench._cores(target, {}) == 2  # here, under an emulator too
    assert bench._cores(target, {"device": "board", "cores": 3}) == 3
    assert bench._cores(target, {"device": "board", "cores": 8}) == 4
    assert bench._cores(target, {"device": "chip"}) == 4  # which does not say
