"""The command `kiln quantise`: a float ONNX model and calibration data become a quantised model (QDQ)."""

METHODS = ("minmax", "entropy", "percentile")  # how the range of an activation follows from its samples
ACTIVATIONS = ("int8", "uint8")
CHOICES = ("auto", "yes", "no")  # whether a change of the weights is made: if it helps, always, never
