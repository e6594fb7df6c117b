"""Golden vectors: inputs, the outputs of a reference independent of Kiln, and the rule of comparison."""
