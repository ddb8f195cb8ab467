"""Which capacity, for how much, finished when: the decision matrix and the arithmetic behind it."""
