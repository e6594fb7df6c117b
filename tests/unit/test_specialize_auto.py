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
from kiln.specialize.auto import Wish, choose, optimal_edges, table_text
from kiln.specialize.cost import START, Fit, MachineFacts, interpolated, operator_cost
from kiln.specialize.traffic import Range, Traffic, read_costs, read_traffic
from networks import save_network
from onnx import helper
from tvm import relax

RANGES = {"batch": Range(1, 8), "seq": Range(2, 64, 2)}


def brute_force(table: Any, most: int) -> float:
    """The cost of the best choice, by trying all."""
    count, best = table.shape[1], np.inf
    for number in range(1, most + 1):
        for columns in itertools.combinations(range(count - 1), number - 1):
            edges = [*columns, count - 1]
            best = min(best, sum(table[row, next(e for e in edges if e >= row)] for row in range(count)))
    return float(best)


@pytest.mark.parametrize("seed", range(12))
def test_edges_are_as_cheap_as_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, most = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    table = (
        rng.integers(0, 50, (count, 1)) * np.sort(rng.random(count)) if seed % 2 else rng.random((count,) * 2)
    )
    cost, columns = optimal_edges(np.asarray(table, float), most)
    assert cost == pytest.approx(brute_force(table, most))
    assert len(columns) <= most and columns == sorted(set(columns)) and columns[-1] == count - 1
    shown = sum(table[row, next(c for c in columns if c >= row)] for row in range(count))
    assert cost == pytest.approx(shown)


def test_one_dimension_with_one_bucket_fewer_and_more() -> None:
    traffic = Traffic(("seq",), {(4,): 90, (6,): 5, (40,): 4, (64,): 1})
    wishes = {"seq": Wish(2)}
    chosen = choose(traffic, wishes, lambda sizes: 1000.0 * sizes["seq"], {})
    assert chosen.edges == {"seq": (6, 64)}
    assert chosen.cost == pytest.approx((95 * 6 + 5 * 64) * 10)
    assert chosen.fewer["seq"] == pytest.approx(64000) and chosen.more["seq"] == pytest.approx(
        (90 * 4 + 5 * 6 + 5 * 64) * 10
    )
    text = table_text(traffic, wishes, chosen)
    assert "pad 6, pad 64" in text and "one fewer (+" in text and "one more (-" in text
    # A size that never came must be taken too, where nothing else is there.
    assert choose(traffic, {"seq": Wish(2, top=128)}, lambda s: s["seq"], {}).edges["seq"][-1] == 128


def test_exact_buckets_go_where_most_time_is_spent() -> None:
    traffic = Traffic(("seq",), {(4,): 90, (6,): 5, (40,): 4, (64,): 1})
    chosen = choose(traffic, {"seq": Wish(2, "exact")}, lambda sizes: float(sizes["seq"]), {})
    assert chosen.edges == {"seq": (4, 40)}


def test_several_dimensions_are_never_worse_than_padding_to_the_greatest() -> None:
    rng = np.random.default_rng(1)
    rows = {(int(b), int(s)): int(rng.integers(1, 9)) for b, s in rng.integers(1, 9, (12, 2))}
    traffic = Traffic(("batch", "seq"), dict(sorted(rows.items())))
    chosen = choose(traffic, {"batch": Wish(2), "seq": Wish(3)}, lambda s: s["batch"] * (s["seq"] + 2.0), {})
    assert len(chosen.edges["batch"]) <= 2 and len(chosen.edges["seq"]) <= 3

    def mean(edges: Any) -> float:
        def served(sizes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(next(e for e in edge if e >= n) for n, edge in zip(sizes, edges, strict=True))

        prices = {sizes: served(sizes)[0] * (served(sizes)[1] + 2.0) for sizes in rows}
        return sum(prices[sizes] * count for sizes, count in rows.items()) / sum(rows.values())

    assert chosen.cost == pytest.approx(mean(chosen.edges.values())) and chosen.cost < mean([(8,), (8,)])
    # No other edges of one dimension are better while those of the other stay.
    for least in range(1, max(b for b, _ in rows)):
        assert mean([(least, max(b for b, _ in rows)), chosen.edges["seq"]]) >= chosen.cost - 1e-9


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
        ("seq,count\n4,-1\n", "t.csv:2: count -1 is below 0"),
        ("len,count\n4,1\n", "no dimension 'len', allowed: batch, seq, count"),
        ("seq,seq,count\n4,4,1\n", "a column is there twice"),
        ("seq,count\n4\n", "t.csv:2: 1 values, expected 2: seq, count"),
        ("seq,count\nfour,1\n", "t.csv:2: seq 'four' is no whole number"),
        ("seq,count\n4,1\n66,1\n", "t.csv:3: seq = 66, allowed 2..64"),
        ("seq,count\n5,1\n", "t.csv:2: seq = 5 is not a multiple of 2"),
        ('seq,count\n"4,1\n', "t.csv:2: no CSV"),
    ],
)
def test_bad_traffic_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(KilnError) as caught:
        read_traffic(tmp_path / "t.csv", RANGES)
    assert says in str(caught.value)


def test_no_text_and_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(KilnError, match="no CSV: it is not text"):
        read_traffic(tmp_path / "t.csv", RANGES)
    with pytest.raises(KilnError, match="cannot read"):
        read_traffic(tmp_path / "absent.csv", RANGES)
    (tmp_path / "c.csv").write_text("seq,nanoseconds\n4,10\n4,11\n")
    with pytest.raises(KilnError, match="seq 4 is there twice"):
        read_costs(tmp_path / "c.csv", "seq")


def dense(rows: int) -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType([rows, 64], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, relax.const(np.ones((64, 32), "float32")))))
    return builder.get()


def test_cost_is_arithmetic_and_memory() -> None:
    slow = operator_cost(dense(8), MachineFacts(flops=1e6, bytes=1e18))
    assert slow == pytest.approx(START + 2 * 8 * 64 * 32 / 1e6)
    wide = operator_cost(dense(8), MachineFacts(flops=1e18, bytes=1e6))
    assert wide == pytest.approx(START + 4 * (8 * 64 + 64 * 32 + 8 * 32) / 1e6)
    assert operator_cost(dense(80)) > operator_cost(dense(8))


def test_a_table_is_not_read_whole() -> None:
    index = relax.Var("i", relax.TensorType([2], "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [index]):
        table = relax.const(np.ones((1000, 8), "float32"))
        builder.emit_func_output(builder.emit(relax.op.take(table, index, 0)))
    cost = operator_cost(builder.get(), MachineFacts(flops=1e18, bytes=1e6))
    assert cost == pytest.approx(START + (2 * 2 * 8 * 4 + 2 * 8) / 1e6)


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


def stage(folder: Path) -> int:
    arguments = ["--config", str(folder / "c.json"), "--source", str(folder / "m.onnx")]
    return main(["edges", *arguments, "--out", str(folder / "auto.json")])


def test_edges_of_a_model_from_its_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path, "seq,count\n4,90\n8,20\n64,9\n", max_buckets=2)
    assert stage(tmp_path) == 0
    found = read_json(tmp_path / "auto.json")
    assert found["buckets"] == {"seq": [{"pad": 8}, {"pad": 64}]}
    costs = found["expected_ns"]["seq"]
    assert costs["one_more"] < costs["chosen"] < costs["one_fewer"]
    assert "pad 8, pad 64" in capsys.readouterr().out


def test_edges_from_measured_times(tmp_path: Path) -> None:
    (tmp_path / "costs.csv").write_text("seq,nanoseconds\n2,100\n64,3200\n")
    costs = str(tmp_path / "costs.csv")
    config(tmp_path, "seq,count\n4,90\n8,20\n32,9\n", max_buckets=1, costs=costs, fallback="error")
    assert stage(tmp_path) == 0
    found = read_json(tmp_path / "auto.json")
    assert found["buckets"] == {"seq": [{"pad": 64}]} and found["expected_ns"]["seq"]["chosen"] == 3200


def test_a_budget_that_is_too_small_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config(tmp_path, "seq,count\n4,90\n", code_budget=100)
    assert stage(tmp_path) == 2
    assert "dims.seq.code_budget: 100 bytes, one bucket needs about 2048" in capsys.readouterr().err
    assert not (tmp_path / "auto.json").exists()
    assert json.loads((tmp_path / "c.json").read_text())["dims"]["seq"]["code_budget"] == 100
