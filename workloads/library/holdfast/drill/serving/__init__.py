"""Servers behind a proxy on this machine, their evictions, and clients that count."""
