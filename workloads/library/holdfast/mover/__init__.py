"""Moves jobs between Spot, flex-start and on-demand as priced, and writes receipts of jobs."""
