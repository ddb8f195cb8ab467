"""Clients of the Kubernetes API, of Google Cloud and of its command line."""
