"""What the reference runtimes have in common: they run one model file, and tell errors in one form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from kiln import doing
from kiln.arrays import Array
from kiln.frontend.quiet import quiet_stderr
from kiln.golden.reference_errors import CannotRunError, other_way, reason


def coarsest(precisions: Sequence[str]) -> str | None:
    """The one of `precisions` that rounds most, bf16 or fp16; None without any of them."""
    return next((name for name in ("bf16", "fp16") if name in precisions), None)


class Reference:
    """One model in a reference runtime.

    `about`: name, version and settings for golden.json. `precision`: fp16 or bf16 where it computes with 16
    bits, so that rounding is coarser than float32's. `graph`: the model without external data, for ONNX.
    `has_dynamic_sizes`: whether an input has a size that the file does not fix. `has_levels`: whether a
    PyTorch program rounds activations to levels.
    """

    path: Path
    about: dict[str, Any]
    precision: str | None = None
    graph: onnx.ModelProto | None = None
    has_dynamic_sizes = True
    has_levels = False

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for `inputs`, both in the model's own order. Raises KilnError if the run fails."""
        try:
            with doing.noted(f"{self.title} ran the model", other_way(self.about)), quiet_stderr():
                return self._run(inputs)
        except Exception as error:  # each reference raises exceptions of its own classes
            text = reason(error).rstrip(". ")
            shapes = ", ".join(str(list(np.shape(value))) for value in inputs)
            dims = (
                "allow in 'dims' only sizes that the model can have, and " if self.has_dynamic_sizes else ""
            )
            raise CannotRunError(
                f"{self.path}",
                f"the reference, {self.about['name']}, cannot run it: {text}; its inputs were of {shapes}",
                f"{dims}if it cannot compute with random numbers, give other inputs with the key 'golden'",
            ) from error

    @property
    def title(self) -> str:
        """Name, version and kernels of the library, such as `LiteRT 2.1.2 (BUILTIN)`."""
        kernels = self.about["settings"].get("op_resolver")
        return f"{self.about['name']} {self.about['version']}{f' ({kernels})' if kernels else ''}"

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        raise NotImplementedError

    def like(self, variant: Reference) -> Reference:
        """`variant` of the model, in the state of this reference."""
        return variant

    def moved(self, factor: float, generator: np.random.Generator | None) -> Reference | None:
        """A PyTorch program whose steps between levels are multiplied by `factor`; None for other formats.

        With `generator`, its float parameters are moved too, as `kiln.golden.moved_program` does.
        """
        return None

    def reset(self) -> None:
        """Set the model's state back to its first values; does nothing for a file without state."""
