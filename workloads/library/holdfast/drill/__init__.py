"""Causes evictions on purpose and judges the result."""
