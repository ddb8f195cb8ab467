"""How a drill is told: console, JUnit, HTML. Each reads a journal and nothing else."""
