"""The declaration in a user's file in `operators/`: an operator's types, its body and its reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the build's own process needs no NumPy, which takes a tenth of its time to import
    import numpy.typing as npt


@dataclass(frozen=True)
class OwnQuant:
    """Quantisation of a tensor of a TFLite file: real = scale * (integer - zero_point), along `axis`.

    One scale and zero point for the whole tensor, or one for each index of `axis`.
    """

    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int = 0


@dataclass(frozen=True)
class OwnTensor:
    """A tensor as the functions of an operator see it, and as its shape rule returns it.

    shape: one entry per axis, an int, or an expression of dynamic sizes, which +, -, *, // and % combine.
    dtype: NumPy's name, such as float32. value: the elements of a constant input, else None. quant: its
    quantisation in a TFLite file, else None.
    """

    shape: tuple[Any, ...]
    dtype: str = "float32"
    value: npt.NDArray[Any] | None = None
    quant: OwnQuant | None = None

    @property
    def elements(self) -> Any:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class OwnOperator:
    """An operator of the user's own.

    name: the operator's type in an ONNX file, or the custom code in a TFLite file. domain: its domain in an
    ONNX file. attributes: by name a default, or a type (int, float, bool, str, bytes, [int], [float], [str])
    where there is none; all functions receive them as keywords.

    result: (OwnTensor of each input, **attributes) → OwnTensor of the output, or a tuple of them. Its
    parameters without default are the required inputs; an omitted input is None. reference: (NumPy array of
    each input, **attributes) → array, or a tuple; the golden vectors are made with it. With a parameter
    `quants` it also gets the OwnQuant, or None, of each input and then of each output, for TFLite files.

    One of three bodies:

    - relax: (Relax expression of each input, **attributes) → expression or tuple.
    - tir: (OwnTensor of each input, **attributes) → TIR PrimFunc whose parameters are the inputs, then the
      outputs.
    - c: name of a C file in the same folder. It defines `function` (by default the name of the file), which
      receives a pointer for each input and output, with `scratch` a pointer to that many bytes, and then the
      values that `arguments` returns. arguments, scratch: (OwnTensor of each input, then of each output,
      **attributes) → numbers, lists of numbers or texts; a number of bytes, which may also be given as int.

    replaces: whether the operator is used in place of Kiln's own of that name.
    """

    name: str
    result: Callable[..., Any]
    reference: Callable[..., Any]
    domain: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    relax: Callable[..., Any] | None = None
    tir: Callable[..., Any] | None = None
    c: str | None = None
    function: str | None = None
    arguments: Callable[..., Any] | None = None
    scratch: Callable[..., Any] | int = 0
    replaces: bool = False
    description: str = ""
