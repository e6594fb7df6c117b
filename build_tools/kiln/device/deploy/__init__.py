"""Deployment of bundles to devices: transports, the files on a device, and the atomic switch of versions."""
