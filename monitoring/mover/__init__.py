"""Moves jobs between Spot and on-demand as the policy that was priced for them says."""
