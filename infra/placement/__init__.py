"""Which capacity, for how much, finished when: the decision matrix and the arithmetic that tells when it is wrong."""
