"""Kiln: an ahead-of-time, multi-target build system for machine-learning models."""

__version__ = "0.1.0"
