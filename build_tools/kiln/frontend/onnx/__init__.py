"""ONNX files: nodes to Relax, shapes with symbols."""
