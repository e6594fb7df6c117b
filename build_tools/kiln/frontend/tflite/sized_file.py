"""A TFLite file at one size of its inputs, or at all sizes of a dynamic dimension."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tflite
from tvm.relax.frontend.tflite import tflite_frontend

from kiln.config.dims import Segment
from kiln.errors import KilnError
from kiln.frontend.importer import one_line
from kiln.frontend.options import ImportOptions
from kiln.frontend.symbols import Symbols
from kiln.frontend.tflite.control import Unrolling, has_own_operators, without_control_flow
from kiln.frontend.tflite.converter_tables import INTEGER_CONVERTERS
from kiln.frontend.tflite.files import DAMAGED, names_operators
from kiln.frontend.tflite.known_values import has_known_values
from kiln.frontend.tflite.operands import Compute
from kiln.frontend.tflite.ops import Converter, ShapeError
from kiln.frontend.tflite.own_nodes import check_fixed
from kiln.frontend.tflite.resized_file import resized
from kiln.frontend.tflite.sizes import OperatorOfSizeError, for_all_sizes
from kiln.frontend.tflite.state_tensors import STATES as RECURRENT
from kiln.frontend.tflite.state_tensors import with_states
from kiln.frontend.tflite.unfitting_sizes import asking_for_sizes
from kiln.frontend.tflite.unique_names import with_unique_names
from kiln.frontend.tflite.variables import Opened, opened


@dataclass(frozen=True)
class SizedFile:
    """A file whose inputs get `shapes`; stateful, stateless: with and without recurrent states as inputs.

    source: the file with control flow and variables, if it has any: LiteRT resizes it. unrolling: of its
    loops at sizes that are fixed. nodes: receives, by Relax operator, the first operators of the file that
    were converted to it.
    """

    path: Path
    stateless: Opened
    stateful: Opened
    shapes: Sequence[Sequence[int | str]]
    options: ImportOptions
    symbols: Symbols
    source: bytes | None = None
    unrolling: Unrolling = Unrolling.NONE
    nodes: dict[str, list[str]] = field(default_factory=dict)

    def convert(self) -> Any:
        """The module, for all sizes of the dynamic dimension if there is one. Raises KilnError."""
        files = [self.stateless.content, *([] if self.source is None else [self.source])]
        reads_sizes = any(has_known_values(tflite.Model.GetRootAsModel(file, 0)) for file in files)
        dynamic = {
            dim: segment for dim, segment in (self.options.bucket or {}).items() if segment.size is None
        }
        if not dynamic:
            return self._convert_at(0, reads_sizes, self.symbols, {})
        [(dim, segment)] = dynamic.items()
        try:  # with sizes that are computed in the run
            return self._for_all_sizes(dim, segment, False)
        except KilnError:
            if not reads_sizes:
                raise
            return self._for_all_sizes(dim, segment, True)

    def _for_all_sizes(self, dim: str, segment: Segment, sizes_known: bool) -> Any:
        """The module for all sizes; operators whose integer form is made for one size are in floats.

        Where it is not known which operator that is, all are in floats.
        """
        in_floats: set[str] = set()
        in_integers: set[str] = set()  # operators whose integer form made a function

        def at(size: int) -> tuple[Any, dict[str, Compute]]:
            computes: dict[str, Compute] = {}
            try:
                return self._convert_at(size, sizes_known, None, computes, in_floats), computes
            finally:
                in_integers.update({made.operator for made in computes.values()} & INTEGER_CONVERTERS.keys())

        while True:
            try:
                return for_all_sizes(at, dim, segment, self.symbols, self.stateless.content)
            except KilnError as error:
                left = in_integers - in_floats
                if not left:
                    raise
                operator = error.operator if isinstance(error, OperatorOfSizeError) else ""
                in_floats |= {operator} if operator in left else left

    def _convert_at(
        self,
        size: int,
        sizes_known: bool,
        symbols: Symbols | None,
        computes: dict[str, Compute],
        in_floats: Collection[str] = (),
    ) -> Any:
        """The module with the dynamic dimension fixed to `size`.

        sizes_known: whether arithmetic on sizes is done here, where LiteRT can run the file. computes,
        in_floats: see `Converter`.
        """
        converter = partial(Converter, self.path, symbols, self.nodes, computes, in_floats)
        model = tflite.Model.GetRootAsModel(self.stateful.content, 0)
        graph = model.Subgraphs(0)
        input_shapes = [[self.options.size(entry) or size for entry in shape] for shape in self.shapes]
        is_same_shape = input_shapes == [_shape(graph.Tensors(index)) for index in graph.InputsAsNumpy()]
        if is_same_shape and not sizes_known:
            try:
                return _convert(self.path, model, converter)
            except ShapeError:  # converters write 1 for a size that they do not know, and LiteRT reads none
                if symbols is not None and symbols.all_counted():
                    raise
        if not is_same_shape:
            check_fixed(self.path, model)
        try:
            opened_file = self._resized(input_shapes, size, sizes_known)
        except KilnError:
            if not is_same_shape:
                raise
            return asking_for_sizes(graph, lambda: _convert(self.path, model, converter))
        resized_file = stateful_of(self.path, opened_file)
        model = tflite.Model.GetRootAsModel(resized_file.content, 0)
        return _convert(self.path, model, converter)

    def _resized(self, input_shapes: Sequence[Sequence[int]], size: int, sizes_known: bool) -> Opened:
        """The file for inputs of these shapes, without the states of recurrent operators as inputs."""
        count, file = len(input_shapes) - len(self.stateful.variables), self.stateless
        if self.source is not None and has_own_operators(file.content):  # LiteRT does not know them
            content = resized(self.source, input_shapes[:count], sizes_known)
            # How often a loop runs may depend on the size.
            file = opened_of(self.path, content, Unrolling.NONE if size else self.unrolling)
            if not sizes_known or has_own_operators(file.content):
                return file
        content = resized(file.content, input_shapes[: count + len(file.variables)], sizes_known)
        return Opened(content, file.variables)


def _shape(tensor: Any) -> list[int]:
    return [int(tensor.Shape(axis)) for axis in range(tensor.ShapeLength())]


def opened_of(path: Path, content: bytes, unrolling: Unrolling) -> Opened:
    """The file `content` with unique names, and without control flow and resource variables."""
    try:
        return opened(path, with_unique_names(path, without_control_flow(path, content, unrolling)))
    except DAMAGED as error:
        raise KilnError(f"{path}: a graph of its control flow is damaged: {one_line(error)}") from error


def stateful_of(path: Path, file: Opened) -> Opened:
    """The file with the state of its recurrent operators as inputs and outputs."""
    model = tflite.Model.GetRootAsModel(file.content, 0)
    return with_states(path, file) if names_operators(model, RECURRENT) else file


def _convert(path: Path, model: Any, converter: Callable[..., Converter]) -> Any:
    try:
        return tflite_frontend.from_tflite(model, op_converter=converter)
    except KilnError:
        raise
    except Exception as error:  # converters raise every kind of exception
        raise KilnError(f"{path}: cannot import the TFLite graph: {one_line(error)}") from error
