"""The reference trainer: a small byte-level GPT under DDP."""
