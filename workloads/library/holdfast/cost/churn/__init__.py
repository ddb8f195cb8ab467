"""How often nodes are reclaimed, measured, with its uncertainty."""
