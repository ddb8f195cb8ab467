"""What the commands do: run the engine, compare, ask Google, write files."""
