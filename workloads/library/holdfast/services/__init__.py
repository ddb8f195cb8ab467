"""Services: a model or a predictor that answers requests, from its file to its objects."""
