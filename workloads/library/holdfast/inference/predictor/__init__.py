"""Predictors, and the process of their own in which they run."""
