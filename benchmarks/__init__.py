"""Kiln and its peers, measured on the same model file in one run: `./kiln bench`. See README.md."""
