"""Builds the images of the roles, copies third-party images, and records the digests of both."""
