"""Items that wait: deliveries and leases, in PostgreSQL or on Pub/Sub."""
