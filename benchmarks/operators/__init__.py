"""`./kiln bench operators`: models of one to three operators in Kiln and in ONNX Runtime, by loss."""
