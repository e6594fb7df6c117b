"""Cases of TFLite's recurrent operators: RNN, SVDF and LSTM, in one direction and in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from tflite_files import Node, Tensor, write_graph

from .lowered import Array

RUNS = 3
BATCH, WIDTH, UNITS, OUTPUTS = 2, 3, 4, 5
INT8_INPUT, INT8_STATE, CELL = (0.02, 4), (0.008, -3), 2.0**-11


@dataclass(frozen=True)
class Recurrence:
    """One operator: its inputs in order, None for those that are left out; results and intermediates."""

    name: str
    operator: str
    inputs: Sequence[Tensor | None]
    results: Sequence[Tensor]
    options: Any
    intermediates: Sequence[Tensor] = ()
    tolerance: float = 2e-5  # of floats; integers are the same

    def write(self, folder: Path) -> Path:
        """The file; a tensor of it that is no constant and no state is an input."""
        tensors, places = [], []
        for tensor in self.inputs:
            places.append(len(tensors) if tensor else -1)
            tensors += [tensor] if tensor else []
        outputs = list(range(len(tensors), len(tensors) + len(self.results)))
        tensors += self.results
        between = list(range(len(tensors), len(tensors) + len(self.intermediates)))
        tensors += self.intermediates
        node = Node(getattr(schema.BuiltinOperator, self.operator), self.options, places, outputs, between)
        given = [at for at in places if at >= 0 and tensors[at].data is None and not tensors[at].variable]
        return write_graph(folder / f"{self.name}.tflite", tensors, [node], given, outputs)

    def draw(self, run: int) -> list[Array]:
        """The inputs of a run."""
        generator = np.random.default_rng(100 + run)
        arrays: list[Array] = []
        for tensor in self.inputs:
            if tensor is not None and tensor.data is None and not tensor.variable:
                values = generator.uniform(-1, 1, tensor.shape)
                arrays.append(
                    (values * 127).astype("int8") if tensor.dtype == "int8" else values.astype("f4")
                )
        return arrays


def weights(name: str, *shape: int, kind: str = "float32", scale: float = 0.01, seed: int = 0) -> Tensor:
    """A constant: floats below 1, or integers with a scale."""
    generator = np.random.default_rng(seed + sum(map(ord, name)))
    if kind == "float32":
        return Tensor(name, shape, data=generator.uniform(-0.8, 0.8, shape).astype("float32"))
    most = {"int8": 127, "int16": 20000, "int32": 3000}[kind]
    values = generator.integers(-most, most + 1, shape).astype(kind)
    return Tensor(name, shape, kind, scale, data=values)


def options_of(table: str, **given: Any) -> Any:
    """Options of the schema."""
    options = getattr(schema, f"{table}T")()
    for key, value in given.items():
        assert hasattr(options, key), key
        setattr(options, key, value)
    return options


def rnn_cases() -> Iterator[Recurrence]:
    """RNN, and sequences of it in one or two directions."""
    for kind in ("float32", "int8"):
        tolerance = 2e-5 if kind == "float32" else 0.06  # LiteRT rounds the activations to 8 bits
        one = [
            weights("w", UNITS, WIDTH, kind=kind),
            weights("r", UNITS, UNITS, kind=kind),
            weights("b", UNITS),
        ]
        state = Tensor("h", (BATCH, UNITS), variable=True)
        for code in (0, 1, 3, 4):
            x, y = Tensor("x", (BATCH, WIDTH)), Tensor("y", (BATCH, UNITS))
            options = options_of("RNNOptions", fusedActivationFunction=code)
            yield Recurrence(f"rnn_{kind}_{code}", "RNN", [x, *one, state], [y], options, tolerance=tolerance)
        for first, code, steps in ((True, 4, 7), (False, 1, 7), (False, 3, 7), (True, 3, 2), (False, 4, 1)):
            sizes = (steps, BATCH) if first else (BATCH, steps)
            x, y = Tensor("x", (*sizes, WIDTH)), Tensor("y", (*sizes, UNITS))
            options = options_of("SequenceRNNOptions", fusedActivationFunction=code, timeMajor=first)
            name = f"sequence_rnn_{kind}_{code}_{first}_{steps}"
            operator = "UNIDIRECTIONAL_SEQUENCE_RNN"
            yield Recurrence(name, operator, [x, *one, state], [y], options, tolerance=tolerance)
        for merge, aux, code in (
            (False, "none", 4),
            (True, "none", 3),
            (True, "input", 4),
            (False, "weights", 1),
        ):
            first = merge
            sizes = (7, BATCH) if first else (BATCH, 7)
            x, z = Tensor("x", (*sizes, WIDTH)), Tensor("z", (*sizes, WIDTH))
            sides = []
            for side in "fb":
                sides += [
                    weights(f"w{side}", UNITS, WIDTH, kind=kind),
                    weights(f"r{side}", UNITS, UNITS, kind=kind),
                ]
                sides += [weights(f"b{side}", UNITS), Tensor(f"h{side}", (BATCH, UNITS), variable=True)]
            more: list[Tensor | None] = [None, None, None]
            if aux != "none":
                more[0] = z
            if aux == "weights":
                more[1:] = [weights(f"a{side}", UNITS, WIDTH, kind=kind) for side in "fb"]
            results = (
                [Tensor("y", (*sizes, 2 * UNITS))]
                if merge
                else [Tensor(f"y{s}", (*sizes, UNITS)) for s in "fb"]
            )
            options = options_of(
                "BidirectionalSequenceRNNOptions",
                fusedActivationFunction=code,
                timeMajor=first,
                mergeOutputs=merge,
            )
            if kind == "int8" and merge:  # LiteRT crashes
                continue
            yield Recurrence(
                f"bidirectional_rnn_{kind}_{merge}_{aux}", "BIDIRECTIONAL_SEQUENCE_RNN", [x, *sides, *more],
                results, options, tolerance=tolerance,
            )  # fmt: skip


def svdf_cases() -> Iterator[Recurrence]:
    """SVDF of floats, with weights of 8 bits, and of integers."""
    filters, memory = 6, 5
    for rank in (1, 2):
        for code in (0, 1):
            options = options_of("SVDFOptions", rank=rank, fusedActivationFunction=code)
            for kind in ("float32", "int8"):
                tensors = [
                    Tensor("x", (BATCH, WIDTH)),
                    weights("f", filters, WIDTH, kind=kind),
                    weights("t", filters, memory, kind=kind),
                    weights("b", filters // rank) if code else None,
                    Tensor("s", (BATCH, memory * filters), variable=True),
                ]
                yield Recurrence(
                    f"svdf_{kind}_{rank}_{code}", "SVDF", tensors,
                    [Tensor("y", (BATCH, filters // rank))], options,
                    tolerance=2e-5 if kind == "float32" else 0.03,
                )  # fmt: skip
        options = options_of("SVDFOptions", rank=rank, fusedActivationFunction=1)
        state = 1 / 4096
        tensors = [
            Tensor("x", (BATCH, WIDTH), "int8", *INT8_INPUT),
            weights("f", filters, WIDTH, kind="int8"),
            weights("t", filters, memory, kind="int16", scale=2e-5),
            weights("b", filters // rank, kind="int32", scale=state * 2e-5),
            Tensor("s", (BATCH, memory * filters), "int16", state, variable=True),
        ]
        result = Tensor("y", (BATCH, filters // rank), "int8", 0.015, -5)
        yield Recurrence(f"svdf_integer_{rank}", "SVDF", tensors, [result], options, tolerance=0)


def gates(
    kind: str, side: str, outputs: int, *, coupled: bool, peephole: bool, project: str, integer: bool = False
) -> list[Tensor | None]:
    """The 17 inputs of weights and biases of an LSTM. project: with which tensors; empty: none."""
    scale = 0.005 if integer else 0.01
    tensors: list[Tensor | None] = [
        weights(f"w{side}{gate}", UNITS, WIDTH, kind=kind, scale=scale) for gate in "ifco"
    ]
    tensors += [weights(f"r{side}{gate}", UNITS, outputs, kind=kind, scale=scale) for gate in "ifco"]
    diagonal = "int16" if integer else kind
    tensors += [
        weights(f"p{side}{gate}", UNITS, kind=diagonal, scale=3e-5 if integer else scale) for gate in "ifo"
    ]
    for gate in "ifco":
        at = INT8_INPUT[0] * scale if integer else 1.0
        tensors.append(weights(f"b{side}{gate}", UNITS, kind="int32" if integer else "float32", scale=at))
    hidden = 0.007
    tensors.append(weights(f"q{side}", outputs, UNITS, kind=kind, scale=scale) if project else None)
    word = "int32" if integer else "float32"
    tensors.append(
        weights(f"z{side}", outputs, kind=word, scale=scale * hidden) if project == "bias" else None
    )
    if not peephole:
        tensors[8:11] = [None] * 3
    if coupled:
        tensors[0] = tensors[4] = tensors[8] = tensors[11] = None
    return tensors


LSTMS: tuple[Mapping[str, Any], ...] = (
    {}, {"code": 1}, {"coupled": True}, {"peephole": True}, {"coupled": True, "peephole": True},
    {"project": "weights"}, {"project": "bias", "proj_clip": 0.3}, {"cell_clip": 0.4}, {"norm": True},
    {"norm": True, "coupled": True, "peephole": True, "project": "bias", "cell_clip": 0.9},
)  # fmt: skip


def lstm_cases() -> Iterator[Recurrence]:
    """LSTM, and sequences of it in one or two directions, with each of its parts."""
    for number, given in enumerate(LSTMS):
        for kind in ("float32", "int8"):
            for operator, steps in (
                ("LSTM", 0),
                ("UNIDIRECTIONAL_SEQUENCE_LSTM", 3),
                ("UNIDIRECTIONAL_SEQUENCE_LSTM", 6),
            ):
                yield one_lstm(operator, f"{number}_{kind}_{steps}", kind, steps, number % 2 == 0, **given)
        if number != 1:
            yield one_lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", f"{number}_integer", "integer", 5, False, **given)
    yield one_lstm("LSTM", "integer", "integer", 0, False)
    fewer = {"peephole": True, "project": "bias", "projected": UNITS - 1}
    yield one_lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", "fewer_integer", "integer", 3, False, **fewer)
    for kind in ("float32", "int8"):
        for number, (aux, merge) in enumerate(
            (("none", True), ("none", False), ("input", True), ("weights", False))
        ):
            yield both_ways(f"{number}_{kind}", kind, aux, merge, coupled=number == 1, peephole=number == 2)
    for project in ("", "bias"):
        yield both_ways(f"project{project}", "float32", "none", True, project=project, cell_clip=0.4)
    tensors = [Tensor("x", (BATCH, WIDTH)), Tensor("h", (BATCH, UNITS), variable=True)]
    tensors += [
        weights("w", 4 * UNITS, WIDTH + UNITS),
        weights("b", 4 * UNITS),
        Tensor("c", (BATCH, UNITS), variable=True),
    ]
    options = options_of("LSTMOptions", fusedActivationFunction=4, kernelType=1)
    results = [Tensor("y", (BATCH, UNITS)), Tensor("s", (BATCH, UNITS))]
    results += [Tensor("t", (BATCH, WIDTH + UNITS)), Tensor("u", (BATCH, 4 * UNITS))]
    yield Recurrence("lstm_basic", "LSTM", tensors, results, options)


def one_lstm(
    operator: str, name: str, kind: str, steps: int, first: bool, *, code: int = 4, coupled: bool = False,
    peephole: bool = False, project: str = "", cell_clip: float = 0.0, proj_clip: float = 0.0,
    norm: bool = False, projected: int = OUTPUTS,
) -> Recurrence:  # fmt: skip
    """An LSTM in one direction; `steps` 0: the operator of one step. kind: of the weights, or integer."""
    integer = kind == "integer"
    outputs = projected if project else UNITS
    parts = gates(
        "int8" if integer else kind,
        "",
        outputs,
        coupled=coupled,
        peephole=peephole,
        project=project,
        integer=integer,
    )
    sizes = [(BATCH,), (steps, BATCH), (BATCH, steps)][0 if not steps else 1 if first else 2]
    inner = "int8" if integer else "float32"
    x = Tensor("x", (*sizes, WIDTH), inner, *(INT8_INPUT if integer else ()))
    y = Tensor("y", (*sizes, outputs), inner, *(INT8_STATE if integer else ()))
    h = Tensor("h", (BATCH, outputs), inner, *(INT8_STATE if integer else ()), variable=True)
    c = Tensor(
        "c", (BATCH, UNITS), "int16" if integer else "float32", CELL if integer else None, variable=True
    )
    norms: list[Tensor | None] = [None] * 4
    if norm:
        kind_of = {"kind": "int16", "scale": 4e-5} if integer else {}
        norms = [weights(f"n{gate}", UNITS, **kind_of) for gate in "ifco"]
        if coupled:
            norms[0] = None
    between = []
    if integer:
        if norm:
            for place in range(11, 15):
                if parts[place] is not None:
                    parts[place] = weights(f"b{place}", UNITS, kind="int32", scale=4e-5 * 2**-10)
        between = [Tensor(f"i{gate}", (), "int16", 2.0**-11) for gate in "ifco"]
        between.append(Tensor("hidden", (), "int8", *((0.007, 2) if project else INT8_STATE)))
    table = "LSTMOptions" if operator == "LSTM" else "UnidirectionalSequenceLSTMOptions"
    more = {} if operator == "LSTM" else {"timeMajor": first}
    options = options_of(table, fusedActivationFunction=code, cellClip=cell_clip, projClip=proj_clip, **more)
    short = "lstm" if operator == "LSTM" else "sequence_lstm"
    return Recurrence(
        f"{short}_{name}", operator, [x, *parts, h, c, *norms], [y], options, between,
        tolerance=0 if integer else 3e-5 if kind == "float32" else 0.05,
    )  # fmt: skip


def both_ways(
    name: str, kind: str, aux: str, merge: bool, *, coupled: bool = False, peephole: bool = False,
    project: str = "", cell_clip: float = 0.0,
) -> Recurrence:  # fmt: skip
    """An LSTM in two directions; aux: whether it has a second sequence, and weights for it."""
    outputs, sizes = OUTPUTS if project else UNITS, (6, BATCH) if merge else (BATCH, 6)
    sides = [gates(kind, side, outputs, coupled=coupled, peephole=peephole, project=project) for side in "fb"]
    states = [
        Tensor(f"{state}{side}", (BATCH, outputs if state == "h" else UNITS), variable=True)
        for side in "fb"
        for state in "hc"
    ]
    more: list[Tensor | None] = [None] * 9
    if aux != "none":
        more[0] = Tensor("z", (*sizes, WIDTH))
    if aux == "weights":
        more[1:] = [weights(f"a{side}{gate}", UNITS, WIDTH, kind=kind) for side in "fb" for gate in "ifco"]
        if coupled:
            more[1] = more[5] = None
    options = options_of(
        "BidirectionalSequenceLSTMOptions", fusedActivationFunction=4, mergeOutputs=merge, timeMajor=merge,
        cellClip=cell_clip,
    )  # fmt: skip
    width = 2 * outputs if merge else outputs
    results = [Tensor(f"y{side}", (*sizes, width)) for side in ("m" if merge else "fb")]
    inputs = [Tensor("x", (*sizes, WIDTH)), *sides[0], *sides[1], *states, *more]
    return Recurrence(
        f"bidirectional_lstm_{name}", "BIDIRECTIONAL_SEQUENCE_LSTM", inputs, results, options,
        tolerance=3e-5 if kind == "float32" else 0.05,
    )  # fmt: skip


def all_cases() -> list[Recurrence]:
    return [*rnn_cases(), *svdf_cases(), *lstm_cases()]
