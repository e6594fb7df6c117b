"""External libraries (BYOC): which subgraphs they can compute, and the C that calls them. One file each."""
