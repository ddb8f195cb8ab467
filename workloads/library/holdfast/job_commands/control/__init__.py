"""Shows the logs of a job, stops and resumes it, and opens a shell in one of its pods."""
