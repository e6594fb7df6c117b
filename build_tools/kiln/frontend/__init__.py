"""Model files become Relax modules: ONNX and TFLite in, one IRModule and its interface out."""
