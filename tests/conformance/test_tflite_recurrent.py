"""TFLite's recurrent operators against LiteRT, over three runs that keep their state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tflite
from kiln.config import load_target
from kiln.emit.object_symbols import symbols
from kiln.emit.objects import compile_object
from kiln.emit.run_time_library import computes_floats
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.frontend.tflite.files import rounds_activations
from kiln.golden.reference import open_reference
from kiln.graph.pipeline import simplify
from kiln.lower.pipeline import Lowering, lower

from .lowered import loaded, runnable_alone
from .programs import execute
from .tflite_recurrent_cases import RUNS, Recurrence, all_cases, one_lstm, rnn_cases


def differences(cases: Sequence[Recurrence], folder: Path) -> list[str]:
    """The differences from LiteRT, in any run, of the cases compiled into one program."""
    lines, made = [], []
    for number, case in enumerate(cases):
        path = case.write(folder)
        module, interface = import_model(path, ImportOptions("m"))
        steps = lower(simplify(module), Lowering(f"m{number}", runnable_alone("x86_64"), "pthread"))
        made.append((case, path, interface.states, steps))
    functions = {name: function for *_, steps in made for name, function in steps.functions.items()}
    compile_object(functions, runnable_alone("x86_64"), folder / "all.o")
    library = loaded(folder / "all.o")
    for case, path, states, steps in made:
        reference = open_reference(path, "builtin_ref")
        now = [np.full(state.shape, state.initial, state.dtype) for state in states]
        for run in range(RUNS):
            inputs = case.draw(run)
            results = execute(steps, library, [*inputs, *now])
            now = results[len(results) - len(now) :]
            for index, want in enumerate(reference.run(inputs)):
                apart = np.abs(results[index].astype("f8") - want.astype("f8")).max()
                limit = case.tolerance * max(1.0, float(np.abs(want).max()))
                if not apart <= limit or results[index].shape != want.shape:
                    lines.append(
                        f"{case.name}: run {run}, output {index}: {apart:.3g} apart, allowed {limit:.3g}"
                    )
    return lines


# One of each kind of step: the others differ in types, activations and steps.
SAMPLE = (
    "sequence_rnn_float32_4_True_7", "svdf_integer_2", "lstm_2_int8_0", "sequence_lstm_4_float32_6",
    "sequence_lstm_6_integer", "sequence_lstm_8_integer",
    "sequence_lstm_9_integer", "sequence_lstm_fewer_integer", "bidirectional_lstm_3_float32",
)  # fmt: skip


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_sample_of_recurrent_operators_keeps_its_state(half: int, tmp_path: Path) -> None:
    chosen = [case for case in all_cases() if case.name in SAMPLE]
    assert len(chosen) == len(SAMPLE)
    assert differences(chosen[half::2], tmp_path) == []


@pytest.mark.heavy
def test_all_recurrent_operators_keep_their_state(tmp_path: Path) -> None:
    assert differences(all_cases(), tmp_path) == []


def test_a_state_that_is_not_variable_is_refused(tmp_path: Path) -> None:
    case = next(case for case in rnn_cases())
    inputs = [*case.inputs[:-1], replace(case.inputs[-1], variable=False)]
    path = replace(case, inputs=inputs).write(tmp_path)
    with pytest.raises(KilnError, match=r"RNN .output y.: input 4, its state, is shared or not variable"):
        import_model(path, ImportOptions("m"))


@pytest.mark.parametrize(("kind", "rounds"), [("int8", True), ("float32", False)])
def test_limits_of_weights_of_8_bits_are_coarse(tmp_path: Path, kind: str, rounds: bool) -> None:
    """LiteRT rounds the activations of a recurrent operator with such weights; the first may be left out."""
    case = one_lstm("LSTM", "m", kind, 0, False, coupled=True)
    assert rounds_activations(tflite.Model.GetRootAsModel(case.write(tmp_path).read_bytes(), 0)) == rounds


def test_peepholes_that_take_the_cells_of_other_units_are_refused(tmp_path: Path) -> None:
    given = {"peephole": True, "project": "weights"}
    case = one_lstm("LSTM", "other", "integer", 0, False, **given)
    with pytest.raises(KilnError, match=r"peepholes, 4 units, 5 outputs and a batch of 2: .* a batch of 1"):
        import_model(case.write(tmp_path), ImportOptions("m"))


def test_integers_need_no_floats(tmp_path: Path) -> None:
    """No function that computes floats in software, of a core without an FPU."""
    target = load_target("cortex_m0plus")
    for case in all_cases():
        if case.name in ("svdf_integer_1", "sequence_lstm_9_integer"):
            module, _ = import_model(case.write(tmp_path), ImportOptions("m"))
            steps = lower(simplify(module), Lowering("m", target, "none"))
            object_file = tmp_path / f"{case.name}.o"
            compile_object(steps.functions, target, object_file)
            called = [symbol.name for symbol in symbols(object_file.read_bytes()) if not symbol.defined]
            assert called and [name for name in called if computes_floats(name)] == [], case.name
