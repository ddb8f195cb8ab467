"""Turns a job file into Kubernetes objects."""
