"""External libraries: where they are found and what is copied into a build."""
