"""Copies of shards in the memory of nodes: what a gang that lost a node restores from instead of the bucket.

`wire` is how a process asks a keeper, `keeper` holds the memory of a node, `places` is what a rank knows of all of
them, `storage` reads a step back as if it were in a bucket.

Decision: infra/decisions/0115.
"""
