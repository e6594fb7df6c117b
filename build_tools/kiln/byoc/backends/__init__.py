"""Kiln's own backends: one file (or a few of one prefix) for each external library."""
