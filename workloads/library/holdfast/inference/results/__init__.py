"""What is stored once: the results, the register of jobs, and their PostgreSQL."""
