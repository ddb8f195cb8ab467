"""Machines of a test: a process and mount namespace each, with its own bus, containerd and kubelet.

Killing the first process of the namespace is the power loss: the kernel ends all the rest.
"""
