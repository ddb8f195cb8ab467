"""Helpers of proxies and foreign servers: endpoints for Envoy, and a drain sidecar."""
