"""Step order and memory planning: every byte of a run has its place before the program is linked."""
