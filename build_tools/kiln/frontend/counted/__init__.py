"""Operators whose results have a size that is in the data: a run counts it, within a bound known before."""
