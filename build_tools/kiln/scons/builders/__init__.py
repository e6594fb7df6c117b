"""One builder a file, in the order of the flow. Each declares one stage for a `Unit` and returns its outputs."""
