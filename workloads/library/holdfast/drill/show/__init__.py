"""Reports of a drill: console and HTML. Each reads a journal and nothing else."""
