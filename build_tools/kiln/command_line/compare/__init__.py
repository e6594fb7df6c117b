"""The command `kiln compare`: compares every tensor of a model with the reference's, in order."""
