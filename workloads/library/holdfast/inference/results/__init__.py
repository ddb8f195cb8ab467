"""The results store, the register of jobs, and their PostgreSQL."""
