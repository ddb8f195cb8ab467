"""Explains why a job waits, restarts or is slow."""
