"""The error of a model in less than float32, measured at build time on the host."""
