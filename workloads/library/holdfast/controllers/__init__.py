"""Watching a cluster under a lease, which exporter and mover share."""
