"""`./kiln bench operators`: models of one to three operators beside ONNX Runtime, the greatest loss first."""
