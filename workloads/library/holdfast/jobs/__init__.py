"""Jobs as a user sees them: what starting one buys, how it fares, and why it waits or restarts."""
