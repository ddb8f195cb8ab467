"""Real evictions on purpose, and the verdict."""
