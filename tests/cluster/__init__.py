"""The cluster tier: our manifests against a real API server, scheduler and controllers."""
