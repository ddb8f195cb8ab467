"""Decides on replicas and machines of a service, and whether its model fits them."""
