"""The linter. Needs YAML readers and the contract only, so that another repository's hook can
install it.
"""
