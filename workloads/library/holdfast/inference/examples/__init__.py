"""Predictors that are not ours: small enough to copy."""
