"""Examples of the checkpoint library in trainers of other frameworks, small enough to copy."""
