"""What a model loses by less precise arithmetic: measured when it is built, on this machine."""
