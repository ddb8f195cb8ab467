"""Measures how often nodes are reclaimed, with the uncertainty of the rate."""
