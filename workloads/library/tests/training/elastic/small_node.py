"""Runs holdfast as on a node with little memory.

python -m workloads.library.tests.training.elastic.small_node ARGUMENTS
"""

from holdfast.checkpoint.save import resizing
from holdfast.cli import main

LIMIT_BYTES = 200_000
"""Enough for copies of the model of a test, and not for those of its optimizer's tensors."""

if __name__ == "__main__":
    resizing.memory_limit = lambda: LIMIT_BYTES
    main()
