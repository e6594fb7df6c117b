"""Op info: the operators that a PrimFunc was made from, kept as an attribute through fusion."""
