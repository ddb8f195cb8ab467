"""Checkpoints of other formats: read as if they were ours, and written from ours."""
