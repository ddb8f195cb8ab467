"""Holds what every process in a pod shares: events, signals, the stop agreement, deadlines."""
