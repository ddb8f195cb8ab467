"""Implementations of `target.Target`: one module per kind of place."""
