"""Model generators: each module writes a network as ONNX, with seeded random or published weights.

A module defines `generate(seed: int, weights: Path | None) -> bytes`. Equal arguments give equal bytes on
every machine, which the SHA-256 in the model's YAML checks. A module whose name begins with an underscore is
used by others.
"""
