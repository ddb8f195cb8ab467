"""The vocabulary that all rooms share.

Standard library only, imports nothing of ours, copied into every image. A name that two rooms
use is spelled here once; the comment beside it says who writes it and who reads it.
"""
