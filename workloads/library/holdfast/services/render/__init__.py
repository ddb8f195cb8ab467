"""Turns a service into the objects of the cluster."""
