"""TFLite files: operators to Relax, sizes with symbols."""
