"""Kubernetes objects from the contract: builders, rendered files, and the linter that knows the
platform.
"""
