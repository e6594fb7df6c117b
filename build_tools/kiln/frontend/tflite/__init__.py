"""Import of TFLite files: checks, symbolic sizes, conversion of operators to Relax."""
