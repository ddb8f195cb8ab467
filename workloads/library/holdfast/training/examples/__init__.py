"""The checkpoint library in trainers that are not ours: small enough to copy."""
