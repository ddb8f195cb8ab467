"""Compares Kubernetes manifests with what the platform offers.

It needs a YAML reader and the contract only, so that another repository's hook can install it.
"""
