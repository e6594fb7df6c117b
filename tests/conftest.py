"""Puts this folder on the import path (pytest does so for the folder of every conftest.py), so that tests of
all kinds share the helper modules that lie here."""
