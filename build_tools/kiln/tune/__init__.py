"""Measures a few candidates for each kernel of a model and keeps what is faster than the rules."""
