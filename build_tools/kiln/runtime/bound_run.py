"""A run of a loaded model on memory that stays the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kiln.errors import KilnError
from kiln.runtime.arrays import Tensor, counted_part


@dataclass(frozen=True)
class BoundRun:
    """A run on fixed memory; calling it runs the model and overwrites `outputs`.

    `run` returns the shapes of the outputs if a run may count their elements.
    """

    inputs: Sequence[Tensor]
    outputs: Mapping[str, Tensor]
    run: Callable[[], Sequence[tuple[int, ...]] | None]

    def __call__(self) -> Mapping[str, Tensor]:
        """Run once. Return `outputs`, whose memory is the same every time.

        Of an output whose elements a run counts, the part that this run has made.
        """
        shapes = self.run()
        if shapes is None:
            return dict(self.outputs)
        pairs = zip(self.outputs.items(), shapes, strict=True)
        return {name: counted_part(array, shape) for (name, array), shape in pairs}

    def __reduce__(self) -> str:
        """Raises KilnError: a copy's arrays would not be the memory that the run reads and writes."""
        raise KilnError("a bound run cannot be copied or pickled; bind the inputs again, to net.copy()")
