"""How often nodes are taken away, measured, with its uncertainty."""
