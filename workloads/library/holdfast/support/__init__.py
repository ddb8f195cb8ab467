"""Provides what every room uses: errors, values, tables, progress, retries, command line."""
