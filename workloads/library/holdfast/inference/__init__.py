"""Batch inference: items leased from a queue, predicted, stored exactly once in PostgreSQL."""
