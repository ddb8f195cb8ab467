"""Images of the roles: built, pushed, copied from others, and their digests written where manifests
read them.
"""
