"""One builder a file, in the order of the flow. Each declares a stage and returns its outputs."""
