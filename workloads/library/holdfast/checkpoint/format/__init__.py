"""The format on the store: what its objects hold, how they are read without trust, committed and fenced."""
