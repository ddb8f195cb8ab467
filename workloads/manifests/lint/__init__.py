"""The linter. Needs ruamel.yaml and the contract only, so that another repository's hook can install it."""
