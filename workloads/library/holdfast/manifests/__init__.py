"""Builds the Kubernetes objects of jobs and services from a platform document.

Builders use models of the `kubernetes` client where it has them, and dicts for CRDs; no text.
"""
