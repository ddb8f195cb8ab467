"""Online inference: an HTTP server that leaves a machine without dropping a request."""
