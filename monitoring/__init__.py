"""Alerts with their runbook, dashboards, and the stack that deploys them."""
