"""Holds the data that processes in pods, their manifests and their watchers agree on.

Imports the standard library only, and no other room. A name that two rooms use is spelled here
once; its comment names its writer and its readers. The platform's own vocabulary is
`infra.contract`.
"""
