"""The operator `recurrent`: an LSTM, GRU or RNN layer over all steps, after the product of the input.

Its operands are tensors of float32, or all of float64: G gates, D directions, H hidden units, batch B, and
length L:

    given      [L, B, D * G * H]  product of the input and its weights, plus biases
    weights    [D, H, G * H]      of the state; columns by gate, in ONNX's order of gates
    bias       [D, H]             of the hidden gate of a GRU whose reset gate comes after the product
    peepholes  [D, 3 * H]         of an LSTM: input, output, forget gate
    lengths    [B], int32         steps of each sequence
    h, c       [D, B, H]          initial states; zeros without them

and its results y [L, D, B, H], h [D, B, H] and, for an LSTM, c [D, B, H]. With `batch_first` these are
[B, L, …], [B, L, D, H] and [B, D, H].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tvm import relax

from kiln.frontend import added_operators

NAME = "recurrent"
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPERANDS = ("given", "weights", "bias", "peepholes", "lengths", "h", "c")
DIRECTIONS = ("forward", "reverse", "bidirectional")


@dataclass(frozen=True)
class Recurrent:
    """The attributes of a `recurrent`.

    `activations`: (name as in ONNX in lower case, alpha, beta) of f, g, h for an LSTM, f, g for a GRU, f for
    an RNN. `clip`: bound of the operands of the gates' activations; None: no bound. `operands`: names of the
    operands that the call has, in the order of OPERANDS. `dtype`: of the operands and results, float32 or
    float64.
    """

    kind: str
    hidden: int
    direction: str
    activations: list[tuple[str, float, float]]
    operands: list[str]
    clip: float | None = None
    before_reset: bool = False
    input_forget: bool = False
    batch_first: bool = False
    dtype: str = "float32"

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def shapes(self, length: Any, batch: Any) -> list[list[Any]]:
        """The shapes of the results for a length and a batch."""
        sides, hidden = self.directions, self.hidden
        state = [batch, sides, hidden] if self.batch_first else [sides, batch, hidden]
        y = [batch, length, sides, hidden] if self.batch_first else [length, sides, batch, hidden]
        return [y, state, state] if self.kind == "LSTM" else [y, state]

    def call(self, tensors: Mapping[str, Any]) -> Any:
        """The tuple of results for the operands in `tensors`, by name."""
        first, second, _ = tensors["given"].ty.shape
        shapes = self.shapes(*((second, first) if self.batch_first else (first, second)))
        types = [relax.TensorType(shape, self.dtype) for shape in shapes]
        return added_operators.call(NAME, [tensors[name] for name in self.operands], asdict(self), types)


def attributes(expr: Any) -> Recurrent:
    """The attributes of a call of `recurrent`."""
    values = added_operators.attributes_of(expr)
    return Recurrent(**{**values, "activations": [tuple(pair) for pair in values["activations"]]})
