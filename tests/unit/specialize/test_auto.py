"""Automatic buckets: optimal edges, traffic files, and the cost of a graph."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.__main__ import main
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.specialize.auto import BucketConstraints, choose, optimal_intervals, table_text
from kiln.specialize.cost import OPERATOR_SECONDS, Fit, MachineFacts, interpolated, operator_cost
from kiln.specialize.traffic import Range, Traffic, read_costs, read_traffic
from networks import save_network
from onnx import helper
from tvm import relax

RANGES = {"batch": Range(1, 8), "seq": Range(2, 64, 2)}


def brute_force(padded: Any, ranged: Any, rest: Any, most: int) -> float:
    """The cost of the best cut, by trying all."""
    count, best = len(ranged), np.inf if rest is None else float(rest.sum())
    for ends in itertools.chain.from_iterable(
        itertools.combinations(range(count), number) for number in range(1, most + 1)
    ):
        if rest is None and ends[-1] != count - 1:
            continue
        firsts = [0, *(end + 1 for end in ends[:-1])]
        total = sum(
            min(padded[first : end + 1, end].sum(), ranged[first : end + 1].sum())
            for first, end in zip(firsts, ends, strict=True)
        )
        best = min(best, total + (0.0 if rest is None else rest[ends[-1] + 1 :].sum()))
    return float(best)


@pytest.mark.parametrize("seed", range(16))
def test_the_cut_is_as_cheap_as_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, most = int(rng.integers(1, 8)), int(rng.integers(1, 5))
    padded, ranged = rng.random((count, count)), rng.random(count)
    rest = None if seed % 2 else ranged.copy()
    cost, found = optimal_intervals(padded, ranged, rest, most)
    assert cost == pytest.approx(brute_force(padded, ranged, rest, most)) and len(found) <= most
    assert [first for _, first, _ in found] == [0, *(last + 1 for *_, last in found)][: len(found)]
    shown = sum(
        padded[first : last + 1, last].sum() if pads else ranged[first : last + 1].sum()
        for pads, first, last in found
    )
    end = found[-1][2] + 1 if found else 0
    assert cost == pytest.approx(shown + (0.0 if rest is None else rest[end:].sum()))


def linear(factor: float = 1.0, open_: float = 10.0) -> Any:
    """A cost in proportion to the product of the sizes; that of dynamic sizes is `open_` times as much."""

    def cost(sizes: Any, serving: str) -> float:
        return factor * float(np.prod(list(sizes.values()))) * (open_ if serving == "open" else 1.0)

    return cost


def edges(chosen: Any, name: str) -> list[str]:
    return [str(interval) for interval in chosen.buckets[name]]


TRAFFIC = Traffic(("seq",), {(4,): 90, (6,): 5, (40,): 4, (64,): 1})


def test_one_dimension_with_one_bucket_fewer_and_more() -> None:
    chosen = choose(TRAFFIC, {"seq": BucketConstraints(2)}, linear(1000.0, 20.0), {})
    assert edges(chosen, "seq") == ["pad 6", "pad 64"]
    assert chosen.cost == pytest.approx((95 * 6 + 5 * 64) * 10)
    assert chosen.fewer["seq"] == pytest.approx((95 * 6 + 20 * 224) * 10) and chosen.more[
        "seq"
    ] == pytest.approx((90 * 4 + 5 * 6 + 5 * 64) * 10)
    text = table_text(TRAFFIC, chosen)
    assert "pad 6, pad 64" in text and "one fewer (+" in text and "one more (-" in text
    # A size that never came must be taken too, where nothing else is there.
    closed = choose(TRAFFIC, {"seq": BucketConstraints(2, top=128)}, linear(1.0, 20.0), {})
    assert edges(closed, "seq")[-1] == "pad 128"


def test_no_bucket_where_the_function_of_dynamic_sizes_costs_less() -> None:
    """A bucket of a small graph takes 2.0 and 3.4 us with its padding, dynamic sizes 1.17."""

    def cost(sizes: Any, serving: str) -> float:
        return {"open": 1170.0, "pad": 2000.0 + sizes["seq"], "exact": 1200.0}[serving]

    chosen = choose(TRAFFIC, {"seq": BucketConstraints(4)}, cost, {})
    assert edges(chosen, "seq") == [] and chosen.cost == chosen.open == pytest.approx(1170)
    assert "none: the dynamic-shape function costs no more" in table_text(TRAFFIC, chosen)
    assert chosen.fewer["seq"] is None
    # Without such a function something has to take them all: at the same price, one of dynamic sizes.
    closed = choose(TRAFFIC, {"seq": BucketConstraints(4, top=64)}, cost, {})
    assert edges(closed, "seq") == ["range 1..64"]
    assert choose(TRAFFIC, {"seq": BucketConstraints(4, "exact")}, cost, {}).buckets["seq"] == ()


def test_a_bucket_stands_only_where_it_gains() -> None:
    """Long sizes gain by padding, short ones lose: they get a range, and the longest the fallback."""

    def cost(sizes: Any, serving: str) -> float:
        if serving == "open":
            return 50.0 if sizes["seq"] <= 6 else 900.0 if sizes["seq"] <= 40 else 10.0
        return 100.0

    chosen = choose(TRAFFIC, {"seq": BucketConstraints(4)}, cost, {})
    assert edges(chosen, "seq") == ["range 1..6", "pad 40"]
    assert chosen.cost == pytest.approx((95 * 50 + 4 * 100 + 10) / 100)
    assert [interval.bucket for interval in chosen.buckets["seq"]] == [{"range": [1, 6]}, {"pad": 40}]


def test_exact_buckets_go_where_most_time_is_saved() -> None:
    chosen = choose(TRAFFIC, {"seq": BucketConstraints(2, "exact")}, linear(1.0, 1.25), {})
    assert edges(chosen, "seq") == ["exact 4", "exact 40"]


def test_several_dimensions_are_never_worse_than_padding_to_the_greatest() -> None:
    rng = np.random.default_rng(1)
    rows = {(int(b), int(s)): int(rng.integers(1, 9)) for b, s in rng.integers(1, 9, (12, 2))}
    traffic = Traffic(("batch", "seq"), dict(sorted(rows.items())))
    chosen = choose(traffic, {"batch": BucketConstraints(2), "seq": BucketConstraints(3)}, linear(), {})
    ends = [[interval.last for interval in chosen.buckets[name]] for name in ("batch", "seq")]
    assert len(ends[0]) <= 2 and len(ends[1]) <= 3

    def mean(edges: Any) -> float:
        def served(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(next(e for e in edge if e >= n) for n, edge in zip(sizes, edges, strict=True))

        prices = {sizes: served(sizes)[0] * served(sizes)[1] for sizes in rows}
        return sum(prices[sizes] * count for sizes, count in rows.items()) / sum(rows.values())

    assert chosen.cost == pytest.approx(mean(ends)) and chosen.cost < mean([(8,), (8,)])
    # No other edges of one dimension are better while those of the other stay.
    for least in range(1, max(b for b, _ in rows)):
        assert mean([(least, max(b for b, _ in rows)), ends[1]]) >= chosen.cost - 1e-9


def test_runs_that_were_not_recorded_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("seq,batch,count\n4,1,865\n,,135\n")
    traffic = read_traffic(path, RANGES)
    assert traffic.rows == {(4, 1): 865} and traffic.missed == 135
    chosen = choose(traffic, {"seq": BucketConstraints(2), "batch": BucketConstraints(2)}, linear(), {})
    assert "warning: 135 of 1000 calls were missed" in table_text(traffic, chosen)
    path.write_text("seq,batch,count\n,1,3\n")
    with pytest.raises(KilnError, match=r"t\.csv:2: seq '' is not a whole number"):
        read_traffic(path, RANGES)


def test_traffic_is_read_and_added_up(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("seq,batch,count\n4,1,3\n\n8,2,1\n4,1,2\n6,1,0\n")
    traffic = read_traffic(path, RANGES)
    assert traffic.rows == {(4, 1): 5, (8, 2): 1} and traffic.of("seq") == {4: 5, 8: 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "t.csv:1: a header with a dimension and 'count' expected"),
        ("seq\n4\n", "t.csv:1: a header"),
        ("seq,count\n", "nothing was counted"),
        ("seq,count\n4,0\n", "nothing was counted"),
        ("seq,count\n4,-1\n", "t.csv:2: count '-1' is not a whole number"),
        ("len,count\n4,1\n", "no dimension 'len', allowed: batch, seq, count"),
        ("seq,seq,count\n4,4,1\n", "a column occurs twice"),
        ("seq,count\n4\n", "t.csv:2: 1 values, expected 2: seq, count"),
        ("seq,count\nfour,1\n", "t.csv:2: seq 'four' is not a whole number"),
        ("seq,count\n4,1\n66,1\n", "t.csv:3: seq = 66, allowed 2..64"),
        ("seq,count\n5,1\n", "t.csv:2: seq = 5 is not a multiple of 2"),
        ('seq,count\n"4,1\n', "t.csv:2: not a CSV file"),
    ],
)
def test_bad_traffic_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(KilnError) as caught:
        read_traffic(tmp_path / "t.csv", RANGES)
    assert says in str(caught.value)


def test_no_text_and_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(KilnError, match="not a CSV file: it is not text"):
        read_traffic(tmp_path / "t.csv", RANGES)
    with pytest.raises(KilnError, match="cannot read"):
        read_traffic(tmp_path / "absent.csv", RANGES)
    (tmp_path / "c.csv").write_text("seq,nanoseconds\n4,10\n4,11\n")
    with pytest.raises(KilnError, match="seq 4 occurs twice"):
        read_costs(tmp_path / "c.csv", "seq")


def dense(rows: int) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType([rows, 64], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, relax.const(np.ones((64, 32), "float32")))))
    return builder.get()


def test_cost_is_arithmetic_and_memory() -> None:
    slow = operator_cost(dense(8), MachineFacts(flops=1e6, bytes=1e18))
    assert slow == pytest.approx(OPERATOR_SECONDS + 2 * 8 * 64 * 32 / 1e6)
    wide = operator_cost(dense(8), MachineFacts(flops=1e18, bytes=1e6))
    assert wide == pytest.approx(OPERATOR_SECONDS + 4 * (8 * 64 + 64 * 32 + 8 * 32) / 1e6)
    assert operator_cost(dense(80)) > operator_cost(dense(8))


def test_a_table_is_not_read_whole() -> None:
    index = relax.Var("i", relax.TensorType([2], "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [index]):
        table = relax.const(np.ones((1000, 8), "float32"))
        builder.emit_func_output(builder.emit(relax.op.take(table, index, 0)))
    cost = operator_cost(builder.get(), MachineFacts(flops=1e18, bytes=1e6))
    assert cost == pytest.approx(OPERATOR_SECONDS + (2 * 2 * 8 * 4 + 2 * 8) / 1e6)


def test_costs_between_samples_are_linear_in_each_dimension() -> None:
    fit = interpolated({"a": [1, 3], "b": [2, 6]}, lambda s: s["a"] * 10.0 + s["b"] + s["a"] * s["b"])
    for a, b in ((2, 4), (1, 6), (3, 3)):
        assert fit({"a": a, "b": b}) == pytest.approx(a * 10 + b + a * b)
    assert Fit({"a": [2, 4]}, {(2,): 10.0, (4,): 20.0})({"a": 6}) == pytest.approx(30)


def config(folder: Path, traffic: str, **more: Any) -> Path:
    (folder / "t.csv").write_text(traffic)
    rows, product = ["seq", 64], helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = {"w": np.ones((64, 64), "float32")}
    save_network(folder / "m.onnx", [product], {"x": rows}, {"y": rows}, weights)
    dim = {"min": 2, "max": 64, "multiple": 2, "auto": True, "traffic": str(folder / "t.csv"), **more}
    write_json(folder / "c.json", {"name": "m", "format": "onnx", "dims": {"seq": dim}})
    return folder / "c.json"


def stage(folder: Path, *more: str) -> int:
    arguments = ["--config", str(folder / "c.json"), "--source", str(folder / "m.onnx"), *more]
    return main(["edges", *arguments, "--out", str(folder / "auto.json")])


def test_edges_of_a_model_from_its_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path, "seq,count\n4,90\n8,20\n64,9\n", max_buckets=2)
    assert stage(tmp_path) == 0
    content = read_json(tmp_path / "auto.json")
    assert content["buckets"] == {"seq": [{"pad": 4}, {"pad": 8}]}
    costs = content["expected_ns"]["seq"]
    assert costs["one_more"] < costs["chosen"] < costs["one_fewer"] < costs["open"]
    assert "pad 4, pad 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("t.csv", "no such file, which dims.seq.traffic names; kiln traffic MODEL FILE.csv"),
        ("c.csv", "no such file, which dims.seq.costs names; kiln tune MODEL --costs FILE measures it"),
    ],
)
def test_a_missing_file_is_named_with_the_command_that_makes_it(
    missing: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config(tmp_path, "seq,count\n4,90\n", costs=str(tmp_path / "c.csv"))
    (tmp_path / "c.csv").write_text("seq,nanoseconds\n2,100\n")
    (tmp_path / missing).unlink()
    assert stage(tmp_path) == 2
    assert f"{tmp_path / missing}: {message}" in capsys.readouterr().err


def test_edges_from_measured_times(tmp_path: Path) -> None:
    (tmp_path / "costs.csv").write_text("seq,nanoseconds,open_nanoseconds\n2,100,4000\n64,3200,9000\n")
    costs = str(tmp_path / "costs.csv")
    config(tmp_path, "seq,count\n4,90\n8,20\n32,9\n", max_buckets=1, costs=costs, fallback="error")
    assert stage(tmp_path) == 0
    content = read_json(tmp_path / "auto.json")
    assert content["buckets"] == {"seq": [{"pad": 64}]} and content["expected_ns"]["seq"]["chosen"] == 3200
    (tmp_path / "costs.csv").write_text("seq,nanoseconds,open_nanoseconds\n2,2000,1170\n64,3400,1170\n")
    config(tmp_path, "seq,count\n4,90\n8,20\n32,9\n", costs=costs)
    assert stage(tmp_path) == 0
    content = read_json(tmp_path / "auto.json")
    assert content["buckets"] == {"seq": []} and content["expected_ns"]["seq"]["chosen"] == 1170


def test_a_budget_that_is_too_small_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path, "seq,count\n4,90\n", code_budget=100)
    assert stage(tmp_path) == 2
    assert "dims.seq.code_budget: 100 bytes, one bucket needs about 2048" in capsys.readouterr().err
    assert not (tmp_path / "auto.json").exists()
    assert json.loads((tmp_path / "c.json").read_text())["dims"]["seq"]["code_budget"] == 100


def test_an_error_names_the_users_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The stage reads a copy of it."""
    config(tmp_path, "seq,count\n4,90\n")
    (tmp_path / "m.onnx").write_bytes(b"damaged")
    assert stage(tmp_path, "--called", "net.onnx") == 2
    printed = capsys.readouterr().err
    assert printed.startswith("kiln: error: net.onnx: ") and str(tmp_path) not in printed
