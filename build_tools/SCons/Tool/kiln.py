"""Introduces Kiln to SCons, which looks for tools here: `Environment(tools=["default", "kiln"])`."""

from kiln import exists, generate

__all__ = ["exists", "generate"]
