"""Running a bundle on its target and judging the results."""
