"""Operators that a user adds in `operators/`: `from kiln.operators import OwnOperator, OwnTensor`."""

from kiln.operators.declaration import OwnOperator, OwnQuant, OwnTensor

__all__ = ["OwnOperator", "OwnQuant", "OwnTensor"]
