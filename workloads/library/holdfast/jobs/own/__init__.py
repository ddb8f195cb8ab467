"""A job of the user's own: a short file, and everything around it that makes it survive eviction."""
