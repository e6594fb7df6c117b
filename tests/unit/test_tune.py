"""The tuner: what it tries, what it keeps, and what lowering makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kiln.__main__ import main
from kiln.config import canonical_json, load_target, target_config
from kiln.device.hostcpu import obstacle
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.kernels.choices import RULES, Choice, choices_of, file_of, key_of, shapes_of
from kiln.kernels.pipeline import lower, machine_of
from kiln.tune.candidates import first_round, second_round
from kiln.tune.measure import best_times
from kiln.tune.stage import merge
from kiln.tune.subject import Subject, module_of

SQUARE = key_of((1, 10, 10, 16), (3, 3, 16, 32), (1, 1), (1, 1), 1)
DENSE = key_of((1, 1, 1, 64), (1, 1, 64, 40), (1, 1), (1, 1), 1)
TARGETS = ("x86_64", "x86_64_v2", "aarch64", "aarch64_a53", "armv7")


def test_a_key_holds_all_of_a_shape() -> None:
    shapes = ([1, 30, 28, 64], [3, 5, 32, 128], [2, 1], [1, 2], 2)
    assert shapes_of(key_of(*shapes)) == shapes


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("key", [SQUARE, DENSE])
def test_candidates_differ_and_begin_with_the_rules(name: str, key: str) -> None:
    machine = machine_of(load_target(name), "pthread", "auto")
    first = first_round(key, machine)
    assert first[0] == RULES
    assert len(set(first)) == len(first)
    for best in first:
        second = second_round(key, best, machine)
        assert len(set(second)) == len(second)
        assert len(second) <= 8
        lanes = machine.lanes("float32")
        sizes = [choice.tile for choice in second if choice.tile is not None]
        assert all(rows * vectors + vectors + 1 <= machine.registers for rows, vectors in sizes), lanes


def test_winograd_is_tried_where_weights_may_grow() -> None:
    def methods(name: str, key: str) -> set[str | None]:
        return {c.winograd for c in first_round(key, machine_of(load_target(name), "none", "auto"))}

    assert methods("x86_64", SQUARE) == {None, "off", "f2", "f4"}
    assert methods("armv7", SQUARE) == {None, "off", "f2"}
    assert methods("x86_64", DENSE) == {None}


def test_what_is_kept(tmp_path: Path) -> None:
    target = load_target("x86_64")
    choice = Choice(winograd="f4", block=12, tile=(5, 2))
    merge(tmp_path, target, {SQUARE: {**choice.describe(), "us": 1.0, "rule_us": 2.0}, DENSE: {"us": 1.0}})
    assert choices_of(target, tmp_path) == {SQUARE: choice}
    merge(tmp_path, target, {SQUARE: {"us": 1.0, "rule_us": 1.0}})
    assert choices_of(target, tmp_path) == {}
    other = target.model_copy(update={"vector": load_target("x86_64_v2").vector})
    merge(tmp_path, target, {SQUARE: choice.describe()})
    assert choices_of(other, tmp_path) == {}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    target = load_target("x86_64")
    write_json(file_of(target, tmp_path), {"cpu": "x", "isa": "avx2", "kernels": {SQUARE: {"blocks": 3}}})
    with pytest.raises(KilnError, match=r"x86-64-v3\.json: conv2d .*'blocks' unknown, allowed: block, "):
        choices_of(target, tmp_path)


def test_lowering_follows_a_choice() -> None:
    target = load_target("x86_64")

    def families(choice: Choice, winograd: str = "auto") -> list[str]:
        steps = lower(module_of(SQUARE), "m", target, "pthread", winograd=winograd, choices={SQUARE: choice})
        return [kernel["family"] for kernel in steps.kernels]

    assert families(Choice(winograd="off")) == ["conv2d"]
    assert families(Choice(winograd="f4", block=6)) == ["winograd"]
    assert families(Choice(winograd="f2", block=0)) == ["winograd"] * 3
    assert families(Choice(winograd="f4"), winograd="off") == ["conv2d"]


def test_candidates_are_run_and_compared() -> None:
    target = load_target("x86_64")
    reason = obstacle(target)
    if reason is not None:
        pytest.skip(reason)
    choices = [RULES, Choice(winograd="f2"), Choice(winograd="off", tile=(4, 3), fetch=False)]
    subjects = [Subject(f"s{i}", SQUARE, choice, target, "pthread") for i, choice in enumerate(choices)]
    assert all(time > 0 for time in best_times(subjects, target))
    wrong = Subject("wrong", SQUARE, RULES, target, "pthread")
    for name, value in wrong.steps.params.items():
        wrong.steps.params[name] = value * 2
    with pytest.raises(KilnError, match="computes other results"):
        best_times([subjects[0], wrong], target)


def test_a_foreign_cpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "target.json").write_text(canonical_json(target_config(load_target("armv7"))))
    write_json(tmp_path / "lower.json", {"name": "m", "threads": None, "winograd": "auto"})
    flags = ["--in", tmp_path, "--target", tmp_path / "target.json", "--config", tmp_path / "lower.json"]
    flags += ["--database", tmp_path, "--out", tmp_path / "tuned.json"]
    assert main(["tune", *map(str, flags)]) == 2
    assert "'armv7' cannot be timed here" in capsys.readouterr().err
    assert not (tmp_path / "tuned.json").exists()
    assert not file_of(load_target("armv7"), tmp_path).exists()


def test_shipped_files_are_readable() -> None:
    for name in ("x86_64", "host"):
        for key, choice in choices_of(load_target(name)).items():
            assert key_of(*shapes_of(key)) == key
            assert choice != RULES


def test_stages_read_each_others_files(tmp_path: Path) -> None:
    target = load_target("x86_64")
    path = file_of(target, tmp_path)
    merge(tmp_path, target, {DENSE: {"part": 0, "us": 2.0, "rule_us": 3.0}})
    assert read_json(path) == {
        "cpu": "x86-64-v3",
        "isa": "avx2",
        "kernels": {DENSE: {"part": 0, "us": 2.0, "rule_us": 3.0}},
    }
