"""Prove an environment on a project: price first, then every step in order, and whatever happens a clean-up."""
