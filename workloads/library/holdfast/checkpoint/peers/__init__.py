"""Copies of shards in the memory of nodes: what a gang that lost a node restores from instead of
the bucket.
"""
