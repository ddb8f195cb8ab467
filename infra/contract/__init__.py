"""The vocabulary that all rooms share.

It imports the standard library and `holdfast.vocabulary` only. A name that two rooms use is spelled
here once.
"""
