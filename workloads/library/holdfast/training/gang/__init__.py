"""Membership of gangs, which elastic and sharded training share."""
