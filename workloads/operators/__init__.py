"""Installs JobSet and Kueue, pinned and with the platform's settings, and checks the cluster."""
