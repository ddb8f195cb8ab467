"""The llm tier: the real vLLM on processors, by the rendered commands of a service."""
