"""The command `kiln`: `kiln build net.onnx --target aarch64`, or `kiln target=aarch64 model=net.onnx`."""
