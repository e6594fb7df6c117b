"""Golden vectors: inputs, what a reference that is not Kiln makes of them, and the rule that compares."""
