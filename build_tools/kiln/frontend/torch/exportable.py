"""An ExportedProgram in terms of operators that PyTorch's exporter to ONNX converts rightly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.frontend.torch.byte_images import BYTE_IMAGES
from kiln.frontend.torch.checks import without_checks
from kiln.frontend.torch.complex_numbers import without_complex
from kiln.frontend.torch.composed_matrices import TENSOR_INVERSES
from kiln.frontend.torch.diagonals import without_diagonal_writes
from kiln.frontend.torch.dynamic_numbers import DYNAMIC_NUMBERS
from kiln.frontend.torch.exact_numbers import EXACT_COUNTS, EXACT_NUMBERS
from kiln.frontend.torch.integers import INTEGERS
from kiln.frontend.torch.losses import LOSSES
from kiln.frontend.torch.promotion import with_explicit_types
from kiln.frontend.torch.quantised_arithmetic import FAKE_QUANTISED, QUANTISED_ARITHMETIC
from kiln.frontend.torch.quantised_tables import with_dequantised_rows
from kiln.frontend.torch.quotients import QUOTIENTS
from kiln.frontend.torch.replaced import replaced
from kiln.frontend.torch.wide_functions import WIDE_FUNCTIONS
from kiln.frontend.torch.without_axes import WITHOUT_AXES

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def exportable(program: ExportedProgram) -> ExportedProgram:
    """A program that computes the same. Raises KilnError for an operator that cannot be replaced."""
    program = without_diagonal_writes(without_checks(program))
    program = replaced(program, FAKE_QUANTISED)  # first, since PyTorch cannot trace it again
    tables = DYNAMIC_NUMBERS, EXACT_COUNTS, EXACT_NUMBERS, INTEGERS, LOSSES, WITHOUT_AXES
    program = replaced(program, *tables, WIDE_FUNCTIONS, BYTE_IMAGES, QUOTIENTS, TENSOR_INVERSES)
    program = replaced(with_dequantised_rows(program), *QUANTISED_ARITHMETIC)
    program = without_complex(program)
    return replaced(with_explicit_types(program), QUOTIENTS)  # by sizes, which are tensors now
