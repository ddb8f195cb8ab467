"""Companions of a proxy or a foreign server: endpoints for Envoy, and a drain for those that have
none.
"""
