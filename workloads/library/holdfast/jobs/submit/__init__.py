"""Checks, prices and starts a job, and follows it."""
