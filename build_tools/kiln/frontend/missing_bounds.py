"""Tensors whose sizes are in the data and that have no bound: one error names all of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from kiln.errors import KilnError

_STAND_IN = 64  # a bound in place of a missing one, to find the others that are missing


class MissingBounds:
    """Notes tensors without a bound, and the nodes that make them, while a model is imported."""

    def __init__(self) -> None:
        self._node = ""
        # By tensor, the node that makes it; None: the first of them ends the import.
        self._nodes: dict[str, str] | None = None

    @contextlib.contextmanager
    def named_together(self, path: Path) -> Iterator[None]:
        """The import of the file `path`, at whose end one KilnError names all tensors that were noted.

        A KilnError of the import itself gives way to it: it may follow from a bound that is missing.
        """
        self._nodes = {}
        try:
            yield
        except KilnError:
            self._refuse(path)
            raise
        self._refuse(path)

    @contextlib.contextmanager
    def inside(self, node: str) -> Iterator[None]:
        """The time during which `node`, as messages show it, is imported."""
        outer, self._node = self._node, node
        try:
            yield
        finally:
            self._node = outer

    def note(self, tensor: str) -> int:
        """Note a tensor, and return a bound with which the import goes on.

        Raises ValueError before `named_together`.
        """
        if self._nodes is None:
            raise ValueError(_remedy([tensor]))
        self._nodes.setdefault(tensor, self._node)
        return _STAND_IN

    def _refuse(self, path: Path) -> None:
        if self._nodes:
            listed = ", ".join(dict.fromkeys(self._nodes.values()))
            raise KilnError(
                f"{path}: operators that cannot be imported: {listed}: {_remedy(list(self._nodes))}"
            )


def _remedy(tensors: Sequence[str]) -> str:
    have, each = ("its result has", "it") if len(tensors) == 1 else ("their results have", "each")
    bounds = ", ".join(f"{tensor}: N" for tensor in tensors)
    return (
        f"{have} a size that is in the data, and no limit follows from the graph: write the most elements "
        f"that {each} may have into the model's YAML, 'bounds: {{{bounds}}}'"
    )
