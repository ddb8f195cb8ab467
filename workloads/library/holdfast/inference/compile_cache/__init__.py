"""Keeps what an engine compiles at its start in a bucket, for replicas that start later."""
