"""One module for each family; a rule is one decorated function with its documentation."""
