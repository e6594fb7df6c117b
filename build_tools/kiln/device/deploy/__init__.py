"""Bringing files to a device: transports, what is there, switching over in one step."""
