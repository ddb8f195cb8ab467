"""What the door's commands do: run the engine, compare, ask Google, write files. Called by infra.__main__ only."""
