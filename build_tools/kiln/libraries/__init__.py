"""External libraries as files: found on this machine or fetched, for one target, in one form."""
