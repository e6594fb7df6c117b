"""Parameters: lifted, transformed once at build time, and stored."""
