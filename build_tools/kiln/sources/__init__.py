"""Fetches files that models need: out of packages, from disk, or from a generator; checked and cached."""

from kiln.sources.fetch import fetch as fetch
