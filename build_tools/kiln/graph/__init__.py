"""Target-independent passes on the Relax graph, one pass a file, listed in pipeline.py."""
