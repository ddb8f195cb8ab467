"""Membership of gangs, and exact sums over them, which elastic and sharded training share."""
