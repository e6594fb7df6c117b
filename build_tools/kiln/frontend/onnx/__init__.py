"""Import of ONNX files: checks, constant folding, symbolic shapes, conversion of nodes to Relax."""
