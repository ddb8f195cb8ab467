"""Queues of items with leases, in PostgreSQL or on Pub/Sub."""
