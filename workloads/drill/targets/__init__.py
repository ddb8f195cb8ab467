"""Where drills play: one module a place, all behind `target.Target`."""
