"""The file of a service: its fields, its text and their checks."""
