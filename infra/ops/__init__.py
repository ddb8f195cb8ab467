"""The work of the commands: run the engine, compare plans, ask Google, write files."""
