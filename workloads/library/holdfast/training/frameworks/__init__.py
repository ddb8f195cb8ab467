"""Callbacks that use the checkpoint library in other frameworks, none of which is a dependency."""
