"""Measured choices among GPU kernels: the file, the lines of the program that measures, who is fastest."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kiln.byoc import gpu_choices
from kiln.config.target import Cuda
from kiln.device.check.runners import Completed
from kiln.errors import KilnError
from kiln.tune.gpu import times
from kiln.tune.gpu.folder import CandidateFolder

CUDA = Cuda(archs=["sm_80", "sm_90"], ptx=False, tuned_for="nvidia-h200")
ENTRY = {"backend": "triton", "tiles": {"triton": [64, 64, 64, 4, 3, 1]}, "us": {"kiln": 3.0, "triton": 2.0}}
LINES = "list\tabc\ngpu\tNVIDIA H200\t90\ntime\ts0_kiln\t3000\t12\n"


def test_a_file_is_read_by_the_name_of_the_gpu(tmp_path: Path) -> None:
    path = gpu_choices.merge(tmp_path, "NVIDIA H200", "sm_90", "fp16", {"dense 8x8 8x8": ENTRY})
    gpu_choices.merge(
        tmp_path, "NVIDIA H200", "sm_90", "bf16", {"dense 8x8 8x8": {**ENTRY, "backend": "kiln"}}
    )
    gpu_choices.merge(tmp_path, "NVIDIA H200", "sm_90", "fp16", {"dense 9x8 8x8": ENTRY})
    assert path.name == "nvidia-h200-sm_90.json" and len(path.read_text().splitlines()) == 13
    choices = gpu_choices.choices_of(CUDA, "fp16", tmp_path)
    assert list(choices) == ["dense 8x8 8x8", "dense 9x8 8x8"]
    assert gpu_choices.tiles_of(choices, "triton")["dense 9x8 8x8"] == (64, 64, 64, 4, 3, 1)
    assert gpu_choices.tiles_of(choices, "cutlass") == {}
    assert gpu_choices.choices_of(CUDA, "bf16", tmp_path)["dense 8x8 8x8"]["backend"] == "kiln"
    assert gpu_choices.choices_of(CUDA, "fp32", tmp_path) == {}
    assert gpu_choices.choices_of(CUDA.model_copy(update={"tuned_for": None}), "fp16", tmp_path) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "{'precisions': {'fp16'"),
        ({"precisions": {"fp16": {"a": {}}}}, "a: 'backend' is"),
        ({"precisions": {"fp16": {"a": {**ENTRY, "tiles": {"triton": [64, "x"]}}}}}, "a: 'tiles' holds"),
        ({"precisions": {"fp16": {"a": {**ENTRY, "tiles": {"triton": []}}}}}, "a: 'tiles' holds"),
        ({"precisions": {"fp16": {"a": {**ENTRY, "us": {"kiln": 0}}}}}, "a: 'us' holds"),
        ({"precisions": {"fp16": {"a": {**ENTRY, "product": 1}}}}, "a: 'product' is a text"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "nvidia-h200-sm_90.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(KilnError, match=message) as refused:
        gpu_choices.choices_of(CUDA, "fp16", tmp_path)
    assert str(refused.value).startswith(str(path))


def _subject(name: str, backend: str, tile: tuple[int, ...], key: str = "conv", product: str = "") -> Any:
    return SimpleNamespace(name=name, key=key, backend=backend, tile=tile, product=product)


def test_the_best_of_kilns_own_tiles_is_what_others_are_compared_with(tmp_path: Path) -> None:
    product = "float16 1x196x256x2304"
    subjects = [
        _subject("own", "kiln", (64, 64, 32, 3), product=product),
        _subject("own1", "kiln", (32, 32, 32, 1), product=product),
        _subject("a", "triton", (1,)),
    ]
    entries = times.entries_of(subjects, times.GpuTimes("G", 90, {"own": 90.0, "own1": 50.0, "a": 60.0}, {}))
    assert entries["conv"]["backend"] == "kiln" and entries["conv"]["us"]["kiln"] == 0.05
    gpu_choices.merge(tmp_path, "NVIDIA H200", "sm_90", "fp16", entries)
    known = gpu_choices.choices_of(CUDA, "fp16", tmp_path)
    assert gpu_choices.products_of(known) == {product: (32, 32, 32, 1)}
    assert gpu_choices.products_of({"conv": ENTRY}) == {}


def test_the_fastest_backend_has_to_be_worth_it() -> None:
    subjects = [
        _subject("own", "kiln", ()), _subject("a", "triton", (1,)), _subject("b", "triton", (2,)),
        _subject("c", "cutlass", ()), _subject("alone", "kiln", (), "other"),
    ]  # fmt: skip
    taken = {"own": 3000.0, "a": 2950.0, "b": 2940.0, "c": 4000.0, "alone": 1.0}
    entries = times.entries_of(subjects, times.GpuTimes("G", 90, taken, {}))
    assert entries == {
        "conv": {
            "backend": "kiln", "tiles": {"triton": [2]}, "us": {"kiln": 3.0, "triton": 2.94, "cutlass": 4.0},
        }
    }  # fmt: skip
    entries = times.entries_of(subjects, times.GpuTimes("G", 90, {**taken, "a": 2000.0}, {}))
    assert entries["conv"]["backend"] == "triton" and entries["conv"]["tiles"] == {"triton": [1]}
    without = {name: time for name, time in taken.items() if name != "own"}
    assert times.entries_of(subjects, times.GpuTimes("G", 90, without, {})) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINES.replace("abc", "old"), "line 1: times of the candidates old, here are abc"),
        (LINES + "time\ts0\tfast\t1\n", "line 4 is not one of time_gpu: 'time"),
        (LINES + "gpu\tTesla T4\t75\n", "line 4: times of two GPUs, NVIDIA H200 and Tesla T4"),
        ("list\tabc\n", "no line names the GPU"),
        ("", "no line names the GPU"),
    ],
)
def test_lines_of_another_list_or_program(text: str, message: str) -> None:
    with pytest.raises(KilnError, match=message):
        times.read(text, "times.tsv", "abc")


class _Runner:
    """A machine whose runs end as told; it keeps the words of each."""

    description, identity, unit = "a GPU", dict[str, Any](), "ns"

    def __init__(self, *ends: tuple[int, str]) -> None:
        self.ends, self.words = list(ends), list[list[str]]()

    def run(self, program: Path, arguments: Any, **_: Any) -> Completed:
        self.words.append(list(arguments))
        status, text = self.ends.pop(0)
        return Completed(status, text, "time_gpu: broken", 0.1)


def test_a_broken_process_is_followed_by_another() -> None:
    runner = _Runner(
        (4, LINES + "failed\ts1\t700\tillegal address\nbroken\t2\n"),
        (0, "list\tabc\ngpu\tNVIDIA H200\t90\ntime\ts2\t5000\t1\n"),
    )
    folder = CandidateFolder(Path("candidates"), "abc", ())
    text = times.run_candidates(folder, runner, 4096)
    assert text is not None
    found = times.read(text, "here", "abc")
    assert found.nanoseconds == {"s0_kiln": 3000, "s2": 5000} and found.failed == {
        "s1": "700 illegal address"
    }
    assert [words[-1] for words in runner.words] == ["0", "2"]
    assert times.run_candidates(folder, _Runner((2, "")), 1) is None
    for status, printed in ((4, "broken\t0\n"), (4, ""), (3, "")):  # no progress, or a bad list
        with pytest.raises(KilnError, match="cannot be timed on a GPU: time_gpu: broken"):
            times.run_candidates(folder, _Runner((status, printed)), 1)
