"""Moves jobs between Spot, flex-start and on-demand as the policy that was priced for them says."""
