"""Functions for special sizes and contents of the inputs, in front of which the general one stays."""
