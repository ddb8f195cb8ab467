"""Training and inference that survive the loss of their machine, for code inside a pod.

Your own trainer begins with `from holdfast.checkpoint import Checkpointer`.
"""

__version__ = "0.1.0"
