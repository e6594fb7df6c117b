"""External libraries (BYOC): the subgraphs that each one can compute, and the C that calls it."""
