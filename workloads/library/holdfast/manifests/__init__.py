"""Environment -> Kubernetes objects. Models of the `kubernetes` client where it has them, dicts for
CRDs; no text.
"""
