"""External libraries: what of a graph they can compute, and the C that calls them. A backend is a file."""
