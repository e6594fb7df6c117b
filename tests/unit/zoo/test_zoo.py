"""The zoo's command, results and table; no PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kiln.errors import KilnError

from benchmarks import __main__ as benchmarks
from zoo import __main__, environment, table
from zoo.catalogue import Entry
from zoo.export import of_two
from zoo.record import Record, Result
from zoo.run import Ended, call, state_of


def test_an_environment_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["list", "--python", str(tmp_path / "python")]) == 2
    printed = capsys.readouterr().err
    assert (
        printed.count("\n") == 1 and "./kiln zoo install" in printed and str(tmp_path / "python") in printed
    )


def test_an_environment_without_the_packages_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: timm' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(KilnError, match="installed there cannot be tried: ModuleNotFoundError: timm"):
        environment.listed(python)


def test_what_was_installed_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho {tmp_path}\n")
    python.chmod(0o755)
    tried = []
    monkeypatch.setattr(environment, "_call", lambda _: None)
    monkeypatch.setattr(environment, "check_imports", lambda *given: tried.append(given))
    environment.install(python)
    ((where, names),) = tried
    assert where == python and {"torch", "torchvision", "scipy"} < set(names)


def test_an_interrupt_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "compare", interrupted)
    monkeypatch.setattr(benchmarks, "run", interrupted)
    for main, words in ((__main__.main, ["list"]), (benchmarks.main, [])):
        assert main(words) == 130 and capsys.readouterr().err == "kiln: interrupted\n"


def test_an_unknown_form_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        __main__.parse(["--form", "onnx"])
    assert "--form onnx: allowed are archive-static" in capsys.readouterr().err


def test_a_model_that_the_zoo_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "listed", lambda _: {"bert": "text"})
    assert __main__.main(["list", "--model", "bert,resnet"]) == 2
    assert "--model resnet: the zoo has no such model" in capsys.readouterr().err
    assert __main__.main(["list", "--model", "b*"]) == 0
    assert capsys.readouterr().out.split() == ["bert", "text"]


@pytest.mark.parametrize(
    ("output", "status", "state", "why"),
    [
        ("", 0, "ok", ""),
        ("kiln: x\nkiln: error: m.onnx: Loop\n", 2, "refused", "m.onnx: Loop"),
        ("kiln: test failed: m on host: 4 differ\n", 2, "wrong", "kiln: test failed: m on host: 4 differ"),
        ("Traceback (most recent call last):\nKeyError: 1\n", 1, "crashed", "KeyError: 1"),
        ("", -11, "crashed", "it printed nothing"),
        ("", None, "slow", "stopped after 7 s"),
    ],
)
def test_what_a_build_came_to(output: str, status: int | None, state: str, why: str) -> None:
    assert state_of(Ended(output, status, 7.0)) == (state, why)


def test_a_process_over_its_limit_ends_with_its_children(tmp_path: Path) -> None:
    ended = call(
        [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"], tmp_path, 1.0
    )
    assert ended.status is None and ended.seconds < 30


def test_results_are_kept_and_shown(tmp_path: Path) -> None:
    record = Record(tmp_path / "results.json", {}, {})
    record.add("net", "text", "dynamo-static", Result("ok", "", 9.0, 2.0, 4000, 2.0, 2.0))
    record.add("net", "text", "dynamo-dynamic", Result("refused", "Loop | If"))
    record.add("other", "text", "dynamo-static", Result("ok", "", 9.0, 3.0, 5000, 0.5))
    record.add("other", "text", "dynamo-dynamic", Result("ok", "", 9.0, None, 5000, 3.0, 1.5))
    again = Record.load(tmp_path / "results.json")
    assert again.result("net", "dynamo-static") == Result("ok", "", 9.0, 2.0, 4000, 2.0, 2.0)
    assert again.result("net", "script-dynamic") is None
    lines = table.made(again).splitlines()
    assert lines[2] == "| all | | 2 of 2 | 1 of 2 | | | 1.00 (mean) | 3.00 (mean) |"
    assert lines[3] == "| net | text | ok | refused: Loop \\| If | 2 | 4 | 2.00 |  |"
    assert lines[4] == "| other | text | ok | ok | 3 | 5 | 0.50 | 3.00 (1.50) |"


def test_rows_of_models_that_were_not_run_here_stay() -> None:
    first = Record(Path("unused"), {}, {})
    first.models["net"] = {
        "dynamo-static": Result("ok", "", 9.0, 2.0, 4000, 2.0),
        "a-dynamic": Result("refused", "a | b"),
    }
    first.models["other"] = {"dynamo-dynamic": Result("ok", "", 9.0, None, 7000)}
    first.groups.update(net="text", other="speech")
    later = Record(
        Path("unused"), {"net": {"script-static": Result("ok", "", 9.0, None, 5000, 0.5)}}, {"net": "text"}
    )
    lines = table.made(later, table.rows(table.made(first))).splitlines()
    assert lines[2] == "| all | | 1 of 1 | 1 of 2 | | | 0.50 (mean) |  |"
    assert lines[3] == "| other | speech |  | ok |  | 7 |  |  |"
    assert lines[4] == "| net | text | ok | refused: a \\| b |  | 5 | 0.50 |  |"


class _Tensor:
    """What `of_two` uses of PyTorch's tensors."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def repeat_interleave(self, times: int, axis: int) -> _Tensor:
        return _Tensor(*self.shape[:axis], self.shape[axis] * times, *self.shape[axis + 1 :])


def test_examples_of_one_are_doubled_where_the_dimension_is_dynamic() -> None:
    axes = {"x": {0: "batch", 1: "h", 2: "8*w"}, "y": {0: "batch"}, "z": {0: "one"}}
    ranges = {"batch": (1, 4), "h": (1, 9), "w": (1, 3), "one": (1, 1)}
    entry = Entry("net", "group", lambda: (None, {}), axes, ranges)
    inputs = {"x": _Tensor(1, 5, 1), "y": _Tensor(1, 3), "z": _Tensor(1), "constant": _Tensor(1)}
    doubled = {name: tensor.shape for name, tensor in of_two(entry, inputs).items()}
    assert doubled == {"x": (2, 5, 1), "y": (2, 3), "z": (1,), "constant": (1,)}
