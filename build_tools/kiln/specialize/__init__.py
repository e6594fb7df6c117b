"""Specialisation: bucket selection, padding to a bucket's size, special cases for contents of inputs."""
