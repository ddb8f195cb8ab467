"""The decision matrix, and the simulation that prices a job on each capacity."""
