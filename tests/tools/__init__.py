"""Test tools built from pinned Go modules: one folder with go.mod and go.sum for each."""
