"""The batch worker, which pulls, claims, predicts, commits and acks items."""
