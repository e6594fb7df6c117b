"""The tuner: its candidates, the records that it keeps, and their use by `lower`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kiln.__main__ import main
from kiln.config import Target, canonical_json, load_target, target_config
from kiln.device.check.host_cpu import obstacle
from kiln.device.check.runners import Completed, Runner, open_runner
from kiln.device.deploy.registry import device_config, load_device
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.kernels.cpu.gemm_tile import choose_tile
from kiln.lower.pipeline import Lowering, lower, machine_of
from kiln.params import store
from kiln.tir.tuning_records import HEURISTICS, TuningRecord, choices_of, file_of, is_key, key_of, shapes_of
from kiln.tune.candidates import first_round, second_round
from kiln.tune.database import merge
from kiln.tune.measure import Bench
from kiln.tune.stage import keys_of
from kiln.tune.subject import Subject, module_of
from kiln.tune.tuner import Tuner

pytestmark = pytest.mark.slow

SQUARE = key_of((1, 10, 10, 16), (3, 3, 16, 32), (1, 1), (1, 1), 1)
DENSE = key_of((1, 1, 1, 64), (1, 1, 64, 40), (1, 1), (1, 1), 1)
DEPTHWISE = key_of((1, 12, 11, 24), (3, 3, 1, 24), (1, 1), (1, 1), 24)
ODD = key_of((2, 9, 7, 7), (2, 3, 7, 17), (2, 1), (1, 2), 1)
KEYS = (SQUARE, DENSE, DEPTHWISE, ODD)
TARGETS = ("x86_64", "x86_64_v2", "aarch64", "aarch64_a53", "armv7", "host")


def candidates(key: str, target: Target) -> list[TuningRecord]:
    """All that could be tried, whatever is fastest."""
    machine = machine_of(target, "pthread", "auto")
    first = first_round(key, machine)
    return list(dict.fromkeys(first + [c for best in first for c in second_round(key, best, machine)]))


def test_a_key_holds_all_of_a_shape() -> None:
    shapes = ([1, 30, 28, 64], [3, 5, 32, 128], [2, 1], [1, 2], 2)
    assert shapes_of(key_of(*shapes)) == shapes
    assert is_key(key_of(*shapes))
    assert not is_key(key_of(["n", 30, 28, 64], *shapes[1:]))  # type: ignore[list-item]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("key", KEYS)
def test_candidates_differ_and_begin_with_the_rules(name: str, key: str) -> None:
    machine = machine_of(load_target(name), "pthread", "auto")
    first = first_round(key, machine)
    assert first[0] == HEURISTICS
    assert len(set(first)) == len(first) > 1
    for best in first:
        second = second_round(key, best, machine)
        assert len(set(second)) == len(second) <= 16
        sizes = [choice.tile for choice in second if choice.tile is not None]
        assert all(rows * vectors + vectors + 1 <= machine.registers for rows, vectors in sizes)
    # Buckets share packed weights: of what decides on the packing only the rules' own is left.
    for choice in [
        c for best in first_round(key, machine, False) for c in second_round(key, best, machine, False)
    ]:
        assert choice.winograd is None


def test_winograd_is_tried_where_weights_may_grow() -> None:
    def methods(name: str, key: str) -> set[str | None]:
        return {c.winograd for c in first_round(key, machine_of(load_target(name), "none", "auto"))}

    assert methods("x86_64", SQUARE) == {None, "off", "f2", "f4"}
    assert methods("armv7", SQUARE) == {None, "off", "f2"}
    assert methods("x86_64", DENSE) == {None}


def test_what_is_kept(tmp_path: Path) -> None:
    target = load_target("x86_64").for_variant("v3")
    choice = TuningRecord(winograd="f4", block=12, tile=(5, 2))
    found = {SQUARE: {**choice.describe(), "us": 1.0, "ratio": 0.5}, DENSE: {"us": 1.0, "ratio": 1.0}}
    path = merge(tmp_path, "x86-64-v3", target, found)
    assert path == file_of("x86-64-v3", "avx2", tmp_path)
    assert read_json(path) == {
        "cpu": "x86-64-v3",
        "isa": "avx2",
        "kernels": {SQUARE: found[SQUARE]},
    }
    assert choices_of(target, tmp_path) == {SQUARE: choice}
    merge(tmp_path, "x86-64-v3", target, {SQUARE: {"us": 1.0, "ratio": 1.0}})
    assert choices_of(target, tmp_path) == {}


def test_a_file_counts_for_its_cpu_and_vector_unit(tmp_path: Path) -> None:
    target = load_target("x86_64").for_variant("v3")
    merge(tmp_path, "znver3", target, {SQUARE: {"winograd": "off", "us": 1.0, "ratio": 0.9}})
    assert choices_of(target, tmp_path) == {}
    target_of_cpu = target.model_copy(update={"tuned_for": "znver3"})
    assert choices_of(target_of_cpu, tmp_path) == {SQUARE: TuningRecord(winograd="off")}
    other = target_of_cpu.model_copy(update={"vector": load_target("x86_64_v2").vector})
    assert choices_of(other, tmp_path) == {}


@pytest.mark.parametrize(
    ("key", "entry", "said"),
    [
        (SQUARE, {"blocks": 3}, "'blocks' unknown, allowed: block, "),
        (SQUARE, {"tile": [6]}, r"tile = \[6\], \[rows, vectors\]"),
        (SQUARE, {"part": -1}, "part = -1, a number of at least 0 expected"),
        (SQUARE, {"winograd": "f6"}, "winograd = 'f6', 'off', 'f2' or 'f4' expected"),
        ("conv 3x3", {}, "'conv 3x3' is not the key of a kernel"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, key: str, entry: dict[str, object], said: str) -> None:
    target = load_target("x86_64").for_variant("v3")
    write_json(file_of(target.cpu, "avx2", tmp_path), {"cpu": "x", "isa": "avx2", "kernels": {key: entry}})
    with pytest.raises(KilnError, match=rf"x86-64-v3-avx2\.json: .*{said}"):
        choices_of(target, tmp_path)


def test_lowering_follows_a_choice() -> None:
    target = load_target("x86_64").for_variant("v3")

    def kernels(key: str, choice: TuningRecord, winograd: str = "auto") -> list[str]:
        steps = lower(
            module_of(key), Lowering("m", target, "pthread", winograd=winograd, choices={key: choice})
        )
        return [kernel.family for kernel in steps.kernels]

    assert kernels(SQUARE, TuningRecord(winograd="off")) == ["conv2d"]
    assert kernels(SQUARE, TuningRecord(winograd="f4", block=6)) == ["winograd"]
    assert kernels(SQUARE, TuningRecord(winograd="f2", block=0)) == ["winograd"] * 3
    assert kernels(SQUARE, TuningRecord(winograd="f4"), winograd="off") == ["conv2d"]
    assert kernels(DEPTHWISE, TuningRecord(strip=3)) == ["depthwise"]


@pytest.mark.parametrize(
    ("key", "choices"),
    [
        (DEPTHWISE, [HEURISTICS, TuningRecord(strip=3), TuningRecord(strip=5)]),
        (SQUARE, [TuningRecord(winograd="off", part=part) for part in (0, 1, 4)]),
        (SQUARE, [TuningRecord(winograd="off", fetch=fetch) for fetch in (0, 1, 2)]),
        (SQUARE, [TuningRecord(winograd="f4", fetch=fetch) for fetch in (0, 1, 2)]),
        (
            DENSE,
            [TuningRecord(fetch=0), TuningRecord(fetch=1), TuningRecord(fetch=2), TuningRecord(tile=(1, 3))],
        ),
    ],
)
def test_each_decision_changes_the_kernel(key: str, choices: Sequence[TuningRecord]) -> None:
    target = load_target("x86_64").for_variant("v3")
    contents = {Subject(f"s{i}", key, choice, target, "pthread").content for i, choice in enumerate(choices)}
    assert len(contents) == len(choices)


def here(name: str) -> tuple[Target, Runner]:
    target = load_target(name)
    reason = obstacle(target)
    if reason is not None:
        pytest.skip(reason)
    return target, open_runner("local", target)


@pytest.mark.heavy
@pytest.mark.parametrize("key", KEYS)
def test_every_candidate_computes_what_the_rules_do(key: str) -> None:
    target, runner = here("host")
    choices = candidates(key, target)
    subjects = [
        Subject(f"s{number}", key, choice, target, "pthread", values=True)
        for number, choice in enumerate(choices)
    ]
    Bench(target, runner, 0).check(subjects)
    wrong = Subject("wrong", key, HEURISTICS, target, "pthread", values=True)
    wrong.memory = [
        memory if memory.values is None else replace(memory, values=memory.values * 2)
        for memory in wrong.memory
    ]
    with pytest.raises(KilnError, match="computes other results"):
        Bench(target, runner, 0).check([subjects[0], wrong])


@pytest.mark.heavy
def test_candidates_race_in_pairs_and_the_best_is_kept() -> None:
    target, runner = here("host")
    bench = Bench(target, runner, 1 << 20)
    choices = [HEURISTICS, TuningRecord(winograd="f2"), TuningRecord(winograd="off", tile=(4, 3), fetch=0)]
    subjects = [Subject(f"s{i}", SQUARE, choice, target, "pthread") for i, choice in enumerate(choices)]
    timed = bench.race(subjects, 1)
    assert [one.subject for one in timed] == subjects
    assert all(one.us > 0 and one.ratio > 0 for one in timed)
    assert timed[0].ratio == 1
    tuned = Tuner(bench, target, "pthread").tuned([DENSE, DEPTHWISE])
    assert list(tuned) == [DENSE, DEPTHWISE]
    assert all(one.subject.choice == HEURISTICS or one.ratio <= 0.97 for one in tuned.values())


class Told:
    """A runner that prints the given times instead of running a program."""

    description, identity = "told", {}

    def __init__(self, times: dict[str, list[int]]) -> None:
        self.times = times

    def run(self, program: Path, arguments: Sequence[str], **_: object) -> Completed:
        lines = [f"time\t{name}\t{time}" for name, times in self.times.items() for time in times]
        return Completed(0, "\n".join(lines), "", 0.0)


def test_a_slow_round_slows_all_and_decides_nothing() -> None:
    target, _ = here("host")
    subjects = [
        Subject(f"s{i}", DENSE, c, target, "none") for i, c in enumerate([HEURISTICS, TuningRecord(fetch=0)])
    ]
    runner = Told({"s0": [100, 900, 110, 100, 100], "s1": [90, 810, 99, 90, 300]})
    rules, other = Bench(target, runner, 0).race(subjects)
    assert rules.ratio == 1
    assert other.ratio == pytest.approx(0.9)
    assert other.wins == 0.8
    with pytest.raises(KilnError, match="did not time conv2d"):
        Bench(target, Told({"s0": [100]}), 0).race(subjects)


def stage(tmp_path: Path, name: str, *more: object, module: Path) -> int:
    target = load_target(name)
    (tmp_path / "target.json").write_text(canonical_json(target_config(target)))
    write_json(tmp_path / "lower.json", {"name": "m", "threads": None, "winograd": "auto"})
    flags = ["--in", module, "--target", tmp_path / "target.json"]
    flags += ["--config", tmp_path / "lower.json", "--database", tmp_path, "--out", tmp_path / "tuned.json"]
    return main(["tune", *map(str, [*flags, *more])])


def test_a_foreign_cpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store.save(module_of(DENSE), tmp_path / "module")
    assert stage(tmp_path, "armv7", module=tmp_path / "module") == 2
    assert "'armv7' cannot be tuned here" in capsys.readouterr().err
    assert [path.name for path in tmp_path.glob("*-neon.json")] == []
    assert not (tmp_path / "tuned.json").exists()


def test_a_model_is_tuned_on_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, _ = here("host")
    store.save(module_of(DENSE), tmp_path / "module")
    device = load_device("local").model_copy(update={"folder": str(tmp_path / "device")})
    (tmp_path / "device.json").write_text(canonical_json(device_config(device)))
    assert stage(tmp_path, "host", "--device", tmp_path / "device.json", module=tmp_path / "module") == 0
    printed = capsys.readouterr().out
    assert "(device 'local', " in printed
    assert f"CPU {target.tuned_for}" in printed
    content = read_json(tmp_path / "tuned.json")
    assert list(content["kernels"]) == [DENSE]
    assert content["cpu"] == target.tuned_for
    shutil.rmtree(tmp_path / "device")


@pytest.mark.heavy
def test_each_bucket_is_tuned_for_itself_with_one_packing(tmp_path: Path) -> None:
    here("host")
    small = key_of((1, 1, 4, 64), (1, 1, 64, 40), (1, 1), (1, 1), 1)
    for name, key in (("module", DENSE), ("other", small)):
        store.save(module_of(key), tmp_path / name)
    assert stage(tmp_path, "host", "--in", tmp_path / "other", module=tmp_path / "module") == 0
    kernels = read_json(tmp_path / "tuned.json")["kernels"]
    assert set(kernels) == {DENSE, small}
    machine = machine_of(load_target("host"), "pthread", "auto")
    usual = choose_tile(machine, 4, 40)
    for entry in kernels.values():  # what would need weights of its own
        assert "winograd" not in entry
        assert entry.get("tile", [0, usual.vectors])[1] == usual.vectors


def test_shipped_files_are_readable() -> None:
    folder = file_of("any", "any").parent
    for path in folder.glob("*.json"):
        cpu, _, isa = path.stem.rpartition("-")
        target = load_target("x86_64").for_variant("v3")
        vector = target.vector.model_copy(update={"isa": isa})
        choices = choices_of(target.model_copy(update={"tuned_for": cpu, "vector": vector}))
        assert choices, path
        for key, choice in choices.items():
            assert key_of(*shapes_of(key)) == key
            assert choice != HEURISTICS


def test_kernels_of_a_model_are_found_with_their_weights(tmp_path: Path) -> None:
    store.save(module_of(SQUARE), tmp_path / "module")
    keys, weights = keys_of([tmp_path / "module"], "m", load_target("x86_64").for_variant("v3"), "pthread")
    assert keys == [SQUARE]
    assert weights >= 3 * 3 * 16 * 32 * 4
