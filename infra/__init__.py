"""Defines what exists: capacity, names, cloud resources."""
