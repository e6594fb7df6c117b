"""External libraries: locating them, and copying their headers and files into a build."""
