"""Gangs whose nodes each hold a part of the state."""
