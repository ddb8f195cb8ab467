"""What exists: capacity, names, cloud resources."""
