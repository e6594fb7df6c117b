"""Statistics of times, and the tables, the CSV files and the picture of them."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from plans import plan_of

from benchmarks import plot, record, tables
from benchmarks.compare import Match, mean_lead, turn_order
from benchmarks.contenders import Contender
from benchmarks.footprint import Footprint, Sizes
from benchmarks.machine import Bandwidth
from benchmarks.profile import Ceilings, report, steps_of, table
from benchmarks.record import Record
from benchmarks.timing import Times, geometric_mean, paired_ratio

KILN = Contender("kiln host", "bundle", "0.1", ("onnx",), "host")
FAST = Contender("fast", "fast", "1.0", ("onnx",))
SLOW = Contender("slow", "slow", "2.0", ("onnx",))
ALL = [KILN, FAST, SLOW]


def times(*rounds: float, cpu: float = 1.0) -> Times:
    """A run a round, `cpu` of whose wall time was processor time."""
    made = Times()
    for wall in rounds:
        made.add([wall], [wall * cpu], "wall")
    return made


def match(kiln: Times, fast: Times, slow: Times | None = None, model: str = "net") -> Match:
    found = {KILN.name: kiln, FAST.name: fast} | ({SLOW.name: slow} if slow else {})
    return Match(model, 1, "wall", found, dict.fromkeys(found, 1e-6))


def test_a_round_counts_with_its_median_and_the_spread_is_half_the_range() -> None:
    made = Times()
    made.add([1.0, 9.0, 2.0], [1.0, 1.0, 1.0], "wall")
    made.add([4.0, 4.0, 4.0], [1.0, 1.0, 1.0], "wall")
    made.add([3.0, 3.0, 90.0], [1.0, 1.0, 1.0], "wall")
    assert made.rounds == [2.0, 4.0, 3.0]
    assert made.median == 3.0
    assert made.spread == pytest.approx((4.0 - 2.0) / 2 / 3.0)
    assert (made.runs, made.best) == (9, 1.0)


def test_the_processor_clock_leaves_out_what_others_took() -> None:
    made = Times()
    made.add([5.0, 7.0], [2.0, 2.0], "cpu")
    assert made.median == 2.0
    assert made.wall == 12.0


def test_a_machine_that_slows_down_for_everyone_changes_no_ratio() -> None:
    steady = paired_ratio(times(2.0, 2.0, 2.0), times(1.0, 1.0, 1.0))
    throttled = paired_ratio(times(2.0, 6.0, 2.0), times(1.0, 3.0, 1.0))
    assert steady == throttled == 2.0


def test_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1.0)
    assert math.isnan(geometric_mean([]))


def test_the_lead_is_over_the_best_peer() -> None:
    played = match(times(1.0), times(2.0), times(8.0))
    assert played.fastest([c.name for c in ALL]) == KILN.name
    assert played.lead([KILN.name]) == (FAST.name, 2.0)
    assert mean_lead([played, match(times(2.0), times(1.0))], [KILN.name]) == pytest.approx(1.0)


def test_a_peer_with_wider_instructions_is_marked_and_does_not_count() -> None:
    played = match(times(1.0), times(0.5), times(2.0))
    played.unheld.append(FAST.name)
    assert played.lead([KILN.name]) == (SLOW.name, 2.0)
    row = tables.times_table([played], ALL).splitlines()[2]
    assert row == "| net | **1000** ±0% | 500 ±0% † | 2000 ±0% | 2.00 |"


def test_without_a_peer_there_is_no_lead() -> None:
    alone = Match("net", 1, "wall", {KILN.name: times(1.0)}, {KILN.name: 0.0})
    assert alone.lead([KILN.name]) is None
    rows = tables.times_table([alone], ALL).splitlines()[2:]
    assert rows == ["| net | **1000** ±0% | – | – | – |", "| geometric mean |  |  |  | – |"]


def test_everyone_is_first_and_last_now_and_then() -> None:
    orders = [turn_order(["a", "b", "c"], number) for number in range(6)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert {order[0] for order in orders} == {order[-1] for order in orders} == {"a", "b", "c"}
    assert turn_order([], 3) == []


def test_the_table_marks_the_fastest_and_whoever_was_interrupted() -> None:
    text = tables.times_table([match(times(0.001), times(0.002, cpu=0.9))], ALL)
    head, _, row, mean = text.splitlines()
    assert head == "| ms | kiln host | fast | slow | best peer / kiln host |"
    assert row == "| net | **1** ±0% | 2 ±0%\\* | – | 2.00 |"
    assert mean.endswith("| 2.00 |")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.1234, "123"), (0.012345, "12.3"), (0.0004567, "0.457"), (2.5, "2500")]
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert tables.milliseconds(seconds) == text


def test_csv_holds_a_line_for_each_time() -> None:
    versions = {c.name: c.version for c in ALL}
    text = tables.times_csv([match(times(0.001), times(0.002, 0.004))], versions)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["contender"] for row in rows] == [KILN.name, FAST.name]
    assert rows[1]["median_ms"] == "3"
    assert (rows[1]["version"], rows[1]["rounds"], rows[1]["best_ms"]) == ("1.0", "2", "2")


def test_footprints_have_sizes_only_where_a_model_is_deployed() -> None:
    kiln = Footprint("net", KILN.name, [0.002], [3_000_000], Sizes(50_000, 150_000))
    python = Footprint("net", "Python and numpy", [0.05], [27_000_000])
    inside = Footprint("net", f"{KILN.name}, in C", [0.004], [4_000_000], Sizes(50_000, 150_000))
    peer = Footprint("net", "onnxruntime", [0.1], [90_000_000], Sizes(30_000_000, 100_000))
    lines = tables.footprints_table([inside, kiln, peer, python]).splitlines()
    names = "kiln host, in C | kiln host | onnxruntime | Python and numpy | onnxruntime / kiln host, in C"
    assert lines[0] == f"| cold start, ms | {names} |"
    assert [line for line in lines if line.startswith("| net")] == [
        "| net | 4 | 2 | 100 | 50 | 25.0 |",
        "| net | 4 | 3 | 90 | 27 | 22.5 |",
        "| net | 0.05 | 0.05 | 30 | – | 600.0 |",
        "| net | 0.2 | 0.2 | 30.1 | – | 150.5 |",
    ]
    assert tables.footprints_table([kiln]).splitlines()[2] == "| net | 2 | – |"
    assert tables.footprints_csv([python]).splitlines()[1].endswith(",27000000,,")


def test_the_picture_is_svg_with_a_bar_for_each_time_and_escaped_text() -> None:
    picture = plot.svg([match(times(0.001), times(0.002), times(0.009))], ALL, "a < b & c")
    root = ElementTree.fromstring(picture)
    bars = [element for element in root.iter() if element.tag.endswith("rect")]
    assert len(bars) == 1 + 3  # the ground and three bars
    widths = [float(bar.get("width", "")) for bar in bars[1:]]
    assert widths[0] == widths[1] / 2  # kiln takes half the time of the best peer
    assert widths[2] == plot.WIDTH  # cut
    assert any("4.5 ×, cut" in (element.text or "") for element in root.iter())


def test_profile_puts_the_lowest_share_first_each_against_the_ceiling_that_binds_it() -> None:
    kernels = [
        {"symbol": "k0", "family": "conv", "flops": 0, "args": [{"dtype": "float32", "const": True}] * 2},
        {"symbol": "k1", "family": "loops", "flops": 500, "args": [{"dtype": "int8", "const": False}]},
    ]
    place = {"offset": 0}
    argument = {"at": "arena", "bytes": 16_000, **place}
    weight = {"at": "params", "bytes": 1000, **place}
    steps = [
        {"kernel": "k1", "label": "add", "macs": 0, "args": [argument]},
        {"kernel": "k0", "label": "conv2d", "macs": 50_000, "args": [argument, weight]},
        {"kernel": "k0", "label": "view", "macs": 0, "args": [argument, weight]},
    ]
    plan = plan_of(kernels=kernels, buckets=[{"steps": []}, {"steps": steps}])
    made = steps_of(plan, [1e-6, 3e-6, 1e-9], 1)
    assert [(s.operations, s.params, s.read, s.written) for s in made] == [
        (500, 0, 0, 16_000),
        (100_000, 1000, 16_000, 0),
        (0, 1000, 16_000, 0),
    ]
    memory = Bandwidth(1, {1 << 14: 100.0, 1 << 20: 10.0}, {1 << 14: 40.0, 1 << 20: 4.0})
    ceilings = Ceilings(100e9, memory, params=1 << 18)
    assert ceilings.compute(made[1]) == pytest.approx(1 / 3)
    assert ceilings.traffic(made[1]) == pytest.approx((1.6e-6 + 1e-7) / 3e-6)  # 17,000 bytes: beyond 16 KiB
    assert ceilings.traffic(made[0]) == pytest.approx(0.4)
    assert ceilings.traffic(made[2]) is None  # faster than memory: it touches a part of its tensors
    text = report(made, ceilings, 3)
    first, second, last = text.splitlines()[-3:]
    assert first == "| add (k1) | 0 | 1.0 | 25.0% | 0.5 | – | 16.0 | 40% | 40% | memory |"
    assert second == "| conv2d (k0) | 1 | 3.0 | 75.0% | 33.3 | 33% | 5.7 | 57% | 57% | memory |"
    assert last.startswith("| view (k0) | 2 | 0.0 | 0.0% |")  # takes no time, so it comes last
    rows = list(csv.DictReader(io.StringIO(table(made, ceilings))))
    assert [row["of_peak"] for row in rows] == ["", "0.3333", ""]
    assert [row["bound"] for row in rows] == ["memory", "memory", ""]
    assert report(made, Ceilings(), 1).splitlines()[0] == "3 steps, 0.004 ms."


def test_bandwidth_is_that_of_the_level_that_holds_a_cores_share() -> None:
    memory = Bandwidth(2, {1000: 8.0, 2000: 4.0}, {1000: 2.0, 2000: 1.0})
    assert [memory.level(size) for size in (1, 2000, 2001, 9999)] == [1000, 1000, 2000, 2000]
    assert memory.seconds(3000, 1000, 2000) == pytest.approx((2000 / 8 + 2000 / 2) * 1e-9)
    assert memory.seconds(0, 1000, 9999) == pytest.approx(1000 / 1 * 1e-9)


def test_a_contender_that_cannot_take_a_model_says_why() -> None:
    played = match(times(0.001), times(0.002))
    played.left_out[SLOW.name] = "it reads no such files"
    assert "| cannot |" in tables.times_table([played], ALL)
    assert "- net on slow: it reads no such files\n" in tables.left_out([played, played])
    assert tables.left_out([match(times(1.0), times(2.0))]) == ""


def test_a_comparison_in_pieces_is_one_record(tmp_path: Path) -> None:
    cold = Footprint("a", "fast", [0.1], [5], Sizes(1, 2))
    first = Record("machine", [KILN, FAST], 5, 0.3, [match(times(1.0), times(2.0), model="b")], [cold])
    record.save(first, tmp_path)
    assert record.load(tmp_path) == first
    assert record.load(tmp_path / "none") is None
    again = [match(times(3.0), times(4.0), model=name) for name in ("b", "a")]
    second = Record("machine", [KILN, SLOW], 7, 0.2, again).follow(first, ["a", "b"])
    assert [c.name for c in second.contenders] == [KILN.name, FAST.name, SLOW.name]
    assert [(m.model, m.times[FAST.name].median) for m in second.matches] == [("a", 4.0), ("b", 4.0)]
    assert (second.rounds, second.seconds, second.footprints) == (5, 0.2, [cold])
