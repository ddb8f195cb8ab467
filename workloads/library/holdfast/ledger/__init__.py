"""Accounts for the time of jobs: event lines in, every microsecond by state out."""
