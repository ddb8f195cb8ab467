"""The commands of jobs and services, which take either kind of file or name."""
