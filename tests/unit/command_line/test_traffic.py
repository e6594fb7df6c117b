"""kiln traffic and kiln tune --costs: adding up, choosing sizes, and refusals."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
from kiln.command_line import __main__ as command_line
from kiln.command_line import costs, timed_copies
from kiln.command_line.answer import AnswerPart, CommandAnswer
from kiln.command_line.costs import measure
from kiln.command_line.traffic import _show_traffic
from kiln.config import load_model
from kiln.errors import KilnError
from kiln.runtime import traffic
from kiln.runtime.traffic import TrafficCounts, add_to_file, merged, read_counts
from kiln.scons import options
from kiln.specialize.traffic import Range, read_costs, read_traffic
from networks import normal, save_network
from onnx import helper


def model(folder: Path, **dim: Any) -> Path:
    """A model with a dynamic dimension `seq`, as YAML."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    save_network(
        folder / "net.onnx", nodes, {"x": [1, "seq", 8]}, {"y": [1, "seq", 8]}, normal(1, 1.0, w=[8, 8])
    )
    about = {"min": 1, "max": 64, **dim}
    content = {
        "description": "a test's",
        "source": {"kind": "file", "path": "net.onnx"},
        "dims": {"seq": about},
    }
    (folder / "net.yaml").write_text(json.dumps(content))
    return folder / "net.yaml"


AUTO = {"buckets": "auto", "traffic": "seen.csv", "costs": "costs.csv"}


def csv(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_files_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns may be in any order; rows of unknown sizes are added too."""
    one = csv(tmp_path / "a.csv", "batch,seq,count\n1,3,10\n2,3,4\n,,5\n")
    two = csv(tmp_path / "b.csv", "count,seq,batch\n7,3,1\n1,9,1\n2,,\n\n")
    out = tmp_path / "out.csv"
    assert command_line.main(["traffic", str(one), str(two), "--out", str(out)]) == 0
    assert out.read_text() == "batch,seq,count\n1,3,17\n1,9,1\n2,3,4\n,,7\n"
    assert capsys.readouterr().out == f"{out}: 22 runs of 3 different sizes, 7 of unknown sizes\n"
    assert read_counts(out).text() == out.read_text()


CONTENTS = '"m,:0:zeros","m,:0:ones","m,:0:other"'


def test_contents_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contents of several files are added up; runs of a file without contents have unknown contents."""
    one = csv(tmp_path / "a.csv", f"seq,count,{CONTENTS}\n3,10,1,7,2\n9,5,,,\n,4,,,\n")
    two = csv(tmp_path / "b.csv", f"{CONTENTS},count,seq\n0,1,0,1,3\n")
    three = csv(tmp_path / "c.csv", "seq,count\n3,100\n")
    out = tmp_path / "out.csv"
    words = ["traffic", *map(str, (one, two, three)), "--out", str(out)]
    assert command_line.main(words) == 0
    assert out.read_text() == f"seq,count,{CONTENTS}\n3,111,1,8,2\n9,5,,,\n,4,,,\n"
    shown = capsys.readouterr().out
    assert "116 runs of 2 different sizes, 4 of unknown sizes" in shown
    assert re.search(r"m,:0\W+1 \(9%\)\W+8 \(73%\)\W+2 \(18%\)", shown)
    assert command_line.main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["results"][0]["data"]
    assert data["contents"] == {"m,:0": {"zeros": 1, "ones": 8, "other": 2}}


def test_who_adds_to_a_file_at_the_same_time_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second writer between reading and writing of the first: the runs of one of them were lost."""
    path, counts = tmp_path / "seen.csv", TrafficCounts(("seq",), {(8,): 1})
    add_to_file(path, counts)
    second = threading.Thread(target=add_to_file, args=(path, counts))

    def read(path: Path) -> TrafficCounts:
        monkeypatch.setattr(traffic, "read_counts", read_counts)
        found = read_counts(path)
        second.start()
        second.join(0.2)  # without a lock it ends here
        return found

    monkeypatch.setattr(traffic, "read_counts", read)
    add_to_file(path, counts)
    second.join()
    assert path.read_text() == "seq,count\n8,3\n"


def test_contents_of_a_model_without_dimensions(tmp_path: Path) -> None:
    """A model without dimensions has a file of one row; inputs without elements are not counted."""
    tensors = {
        "a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.int8), "c": np.array([-0.0], np.float16),
        "d": np.array([True]), "e": np.zeros((0, 3)), "f": np.array([1, 1, 0]), "g": np.ones((3, 4))[:, ::2],
    }  # fmt: skip
    counts = TrafficCounts(())
    counts.count((), tensors)
    counts.count((), {"a": np.zeros(1)}, 2)
    add_to_file(tmp_path / "a.csv", counts)
    add_to_file(tmp_path / "a.csv", counts)
    expected = {
        "a": (4, 2, 0),
        "b": (2, 0, 0),
        "c": (0, 0, 2),
        "d": (0, 2, 0),
        "f": (0, 0, 2),
        "g": (0, 2, 0),
    }
    found = read_counts(tmp_path / "a.csv")
    assert found.rows == {(): 6} and found.missed == 0
    assert {name: tuple(one.values()) for name, one in found.of_inputs().items()} == expected
    csv(tmp_path / "b.csv", "seq,count\n1,1\n")
    with pytest.raises(KilnError, match=r"b.csv: traffic of seq, expected no dimensions, as in"):
        merged([tmp_path / "a.csv", tmp_path / "b.csv"])


def test_special_cases_that_a_model_lacks_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model(tmp_path, **AUTO)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "special_cases": [{"input": "x", "value": "zeros"}]}))
    counts = TrafficCounts(("seq",))
    counts.count((3,), {"x": np.zeros(3)}, 5)
    _show_traffic("t.csv", counts, load_model(str(path)))
    assert "not in special_cases" not in capsys.readouterr().out
    counts.count((3,), {"x": np.ones(3)})
    _show_traffic("t.csv", counts, load_model(str(path)))
    assert "not in special_cases of net: {input: x, value: ones}\n" in capsys.readouterr().out


def test_buckets_are_chosen_from_a_file_with_contents(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", f"seq,count,{CONTENTS}\n3,10,1,7,2\n")
    assert read_traffic(path, {"seq": Range(1, 64, 1)}).rows == {(3,): 10}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "seq,count,m:zeros,m:other\n1,1,0,0\n",
            "bad.csv:1: the column m:ones is missing, unlike the other columns of 'm'",
        ),
        ("seq,count,m:zeros,m:ones,m:other\n1,1,0,x,0\n", "bad.csv:2: m:ones 'x' is not a whole number"),
        ("seq,count,m:zeros,m:ones,m:other\n1,1,0,2,0\n", "bad.csv:2: 2 contents of 'm' in 1 runs"),
        ("", "bad.csv:1: a header with a dimension and 'count' expected, got: none"),
        ("seq\n1\n", "bad.csv:1: a header with a dimension and 'count' expected, got: seq"),
        ("seq,count\n1\n", "bad.csv:2: 1 values, expected 2: seq, count"),
        ("seq,count\n-1,2\n", "bad.csv:2: seq '-1' is not a whole number"),
        ("seq,count\n1,1e3\n", "bad.csv:2: count '1e3' is not a whole number"),
        ("other,count\n1,1\n", "bad.csv: traffic of other, expected seq, as in "),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    good, bad = csv(tmp_path / "good.csv", "seq,count\n1,1\n"), csv(tmp_path / "bad.csv", text)
    with pytest.raises(KilnError) as raised:
        merged([good, bad])
    assert message in str(raised.value)


def test_wrong_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    csv(tmp_path / "a.csv", "batch,count\n1,1\n")
    csv(tmp_path / "far.csv", "seq,count\n65,1\n")
    csv(tmp_path / "zero.csv", "seq,count\n6,0\n")
    model(tmp_path, **AUTO)
    for words, message in (
        ("net.yaml", "no traffic file (.csv) is given"),
        ("a.csv", "one model is needed: kiln traffic net.yaml monday.csv"),
        ("net.yaml a.csv --out b.csv", "no model, no --costs"),
        ("resnet a.csv", "model 'resnet' has no dimension with 'buckets: auto'"),
        ("net.yaml a.csv", "model 'net' has no dimension 'batch', only seq"),
        ("net.yaml far.csv", "far.csv:2: seq = 65, allowed 1..64"),
        ("net.yaml zero.csv", "zero.csv: nothing was counted"),
        ("none.csv --out b.csv", "none.csv: cannot read: No such file"),
    ):
        assert command_line.main(["traffic", *words.split()]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "b.csv").exists() and not (tmp_path / "seen.csv").exists()


@pytest.mark.parametrize(
    ("dim", "seen", "expected"),
    [
        ({"min": 1, "max": 64}, None, [2, 5, 12, 28, 64]),
        ({"min": 1, "max": 512}, "seq,count\n3,1\n40,2\n", [3, 5, 8, 14, 24, 40]),
        ({"min": 16, "max": 64, "multiple": 16}, None, [32, 64]),
        ({"min": 4, "max": 7}, None, [5, 7]),
    ],
)
def test_sizes(dim: dict[str, Any], seen: str | None, expected: list[int], tmp_path: Path) -> None:
    """Each size ends a range of at least two sizes, so that its code is for any size."""
    path = model(tmp_path, **dim, **(AUTO if seen else {}))
    if seen:
        csv(tmp_path / "seen.csv", seen)
    found = costs._sizes(load_model(str(path)), "seq")
    assert found == expected
    least = dim["min"]
    for size in found:
        assert size > least
        least = size + dim.get("multiple", 1)


def test_times_become_a_cost_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The copies have the buckets that are timed; the file is one that `costs` accepts."""
    monkeypatch.chdir(tmp_path)
    path, copies, at_least = model(tmp_path, **AUTO), [], False
    csv(tmp_path / "seen.csv", "seq,count\n4,1\n16,2\n")

    def bench(words: list[str], environment: dict[str, str], stream: TextIO) -> CommandAnswer:
        print("kiln: net: a stage", file=stream)
        assert environment == {"KILN_BUNDLES": "build/.copies"}  # no bundles for a user to find
        assert words[1:] == ["bench", "target=host"]
        copy = load_model(words[0].removeprefix("model="))
        copies.append(copy.dims["seq"].buckets)
        runs = []
        for bucket in copy.dims["seq"].buckets:
            low, high = bucket.edges
            name = f"seq{high}" if bucket.exact is not None else f"seq{low}_{high}"
            median, sizes = high / 1000 * (1 if bucket.exact else 2), [low if at_least else high]
            runs.append({"bucket": name, "threads": 1, "median": median, "sizes": sizes})
            runs.append({"bucket": name, "threads": 2, "median": 0.0, "sizes": sizes})
        data = {"runs": runs, "time_unit": "ms", "emulated": False, "target": "host"}
        return CommandAnswer(command="bench", results=[AnswerPart(goal="bench", data=data)])

    monkeypatch.setattr(timed_copies, "answer_of_goals", bench)
    found = measure(str(path), "host", None)
    csv(tmp_path / "costs.csv", found.text())
    times = read_costs(tmp_path / "costs.csv", "seq")
    assert list(times) == [bucket.exact for bucket in copies[0]]
    assert all(np.isclose(exact, size * 1e3) and np.isclose(open_, size * 2e3)
               for size, (exact, open_) in times.items() if open_ is not None)  # fmt: skip
    assert copies[1][0].range == [1, 4]
    capfd.readouterr()
    assert command_line.main(["tune", "net.yaml", "--costs", "new.csv", "--target", "host", "--quiet"]) == 0
    assert "a stage" not in "".join(capfd.readouterr())
    assert (tmp_path / "new.csv").read_text() == found.text()
    at_least = True
    with pytest.raises(KilnError, match=r"costs: bucket 'seq1_4' was timed at \[1\], not at 4"):
        measure(str(path), "host", None)


def test_emulated_times_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(timed_copies, "answer_of_goals", lambda *_: pytest.fail("refused before a build"))
    with pytest.raises(KilnError, match=r"'cortex_m4' does not run on this machine, .* with --device NAME$"):
        measure(str(model(tmp_path)), "cortex_m4", None)
    csv(tmp_path / "seen.csv", "seq,count\n4,1\n")
    words = ["traffic", str(model(tmp_path, **AUTO)), "seen.csv", "--costs", "--target", "cortex_m4"]
    before = sorted(tmp_path.iterdir())
    assert command_line.main(words) == 2 and sorted(tmp_path.iterdir()) == before
    with pytest.raises(KilnError, match="no dimension 'batch' with a range; dimensions: seq"):
        measure(str(model(tmp_path)), "host", None, "batch")
    with pytest.raises(KilnError, match="'resnet': it has no dynamic dimension, so there is one time only"):
        measure("resnet", "host", None)
    (tmp_path / "folder").mkdir()
    assert command_line.main(["tune", "net.yaml", "--costs", "folder"]) == 2
    assert "--costs folder: a folder, but the path of a file is expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "goals", "message"),
    [
        ({"traffic": "seen.csv"}, ["bundle"], "option 'traffic' is for the goals run, bench and profile"),
        ({"traffic": "seen.txt"}, ["run"], "'seen.txt': a path that ends in .csv expected"),
        ({"traffic": "bad.csv"}, ["bench"], "bad.csv:1: a header with"),
    ],
)
def test_wrong_files_for_runs_are_refused_before_anything_is_built(
    arguments: dict[str, str], goals: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    csv(tmp_path / "bad.csv", "count\n1\n")
    with pytest.raises(KilnError, match=message):
        options.parse({"model": "resnet", "target": "host", **arguments}, goals)


@pytest.mark.heavy
def test_the_loop_closes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From two traffic files to measured costs and a built model."""
    monkeypatch.chdir(tmp_path)
    model(tmp_path, **AUTO)
    csv(tmp_path / "a.csv", "seq,count\n3,10\n17,40\n")
    csv(tmp_path / "b.csv", "seq,count\n17,5\n40,9\n")
    assert command_line.main(["traffic", "net.yaml", "a.csv", "b.csv", "--costs", "--json"]) == 0
    part = json.loads(capsys.readouterr().out)["results"][0]
    assert (part["data"]["runs"], part["data"]["sizes"]) == (64, 3)
    assert (tmp_path / "seen.csv").read_text() == "seq,count\n3,10\n17,45\n40,9\n"
    assert len(read_costs(tmp_path / "costs.csv", "seq")) >= 2
    assert (tmp_path / "build/host/net/manifest.json").is_file() and part["data"]["buckets"]
