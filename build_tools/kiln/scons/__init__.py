"""The SCons tool: the graph of stages, and the files that each reads and writes; it imports no stage."""
