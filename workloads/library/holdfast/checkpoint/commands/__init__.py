"""What `holdfast checkpoints` does beyond saving and restoring: list, import, copy, export."""
