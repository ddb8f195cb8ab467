"""What every process in a pod shares: events, signals, the stop agreement, deadlines."""
