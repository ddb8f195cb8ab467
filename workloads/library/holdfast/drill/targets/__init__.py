"""Where drills run: one module a place, all behind `target.Target`."""
