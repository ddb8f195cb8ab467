"""Builds the platform's half of a cluster and renders it, with the samples, as YAML files."""
