"""Prices, starts and follows jobs, and explains why one waits or restarts."""
