"""Saves: staging memory, agreement of the ranks, the uploader process, retention."""
