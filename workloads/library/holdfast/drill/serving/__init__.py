"""Local servers behind a real proxy, their evictions, and clients that count every answer."""
