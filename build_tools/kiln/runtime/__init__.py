"""Runs bundles from Python: loads the shared library of a bundle and calls it. Requires only NumPy."""

from kiln.runtime.network import Network, load

__all__ = ["Network", "load"]
