"""Restoring: the newest checkpoint that verifies, into the user's objects, on all ranks or on none."""
