"""A small engine for text: vLLM's protocol with a model that is a pure function of the tokens."""
