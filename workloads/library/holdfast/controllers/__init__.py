"""Watches a cluster under a lease. The exporter and the mover share this package."""
