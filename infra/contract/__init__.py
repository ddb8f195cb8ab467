"""The vocabulary that all rooms share.

It imports the standard library and `holdfast.contract` only. A name that two rooms use is spelled
here once.
"""
