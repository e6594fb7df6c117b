"""Random TFLite graphs whose results are compared with LiteRT's reference kernels."""
