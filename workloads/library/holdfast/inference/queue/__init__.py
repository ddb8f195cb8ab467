"""Items that wait: deliveries, leases, dead letters."""
