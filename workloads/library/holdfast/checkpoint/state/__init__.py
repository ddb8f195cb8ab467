"""A user's state: which tensors and values it has, and which bytes of it each rank writes."""
