"""Decides where a job runs and what that costs."""
