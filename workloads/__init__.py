"""What runs in pods."""
