"""Signatures, provenance and bills of materials of finished bundles."""

FOLDER = "trust"  # in a bundle: what this package writes there
PROVENANCE = f"{FOLDER}/provenance.dsse.json"
