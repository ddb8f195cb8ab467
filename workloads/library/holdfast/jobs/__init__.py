"""Starts jobs from a file, shows their price, follows them, and explains why one waits or restarts."""
