"""The job file: its fields, its text and its JSON schema."""
