"""The vocabulary that all rooms share.

Standard library only, imports nothing of this repository, copied into every image. A name that two rooms
use is spelled here once; its comment says who writes it and who reads it.
"""
