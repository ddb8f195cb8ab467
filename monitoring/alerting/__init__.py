"""The alerts as data, their runbook, and the dashboards."""
