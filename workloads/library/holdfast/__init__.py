"""Training and inference that survive losing their machine: what runs inside a pod.

`from holdfast.checkpoint import Checkpointer` is where your own trainer begins.
"""
