"""How each operator family is computed, packed and scheduled: one family a file."""
