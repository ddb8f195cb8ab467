"""Curves of a run in trackers of others, each whole over any number of evictions."""
