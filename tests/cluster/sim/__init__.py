"""A throw-away Kubernetes control plane of host processes, with simulated nodes that can be
preempted.
"""
