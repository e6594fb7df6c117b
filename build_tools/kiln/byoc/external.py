"""Passes of `lower` that hand subgraphs to external libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kiln.graph.pipeline import Pass


class External(Protocol):
    """Makes the passes that replace subgraphs by calls of external libraries (relax.call_dps_packed).

    The passes store the generated code in the module's attribute `kiln.externals`.
    """

    def before(self) -> list[tuple[str, Pass]]:
        """Named passes that run before lowering and match operators."""

    def after(self, values: Mapping[str, Any]) -> list[tuple[str, Pass]]:
        """Named passes that run after fusion and match op info; `values`: constants by name in `main`."""
