"""Random ONNX graphs whose results are compared with ONNX Runtime's."""
