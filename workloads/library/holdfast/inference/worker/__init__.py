"""The batch worker: pull, claim, predict, commit, ack."""
