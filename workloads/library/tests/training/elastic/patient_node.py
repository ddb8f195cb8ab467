"""Runs holdfast as a node that waits for all others at its start, however late they come.

python -m workloads.library.tests.training.elastic.patient_node ARGUMENTS
"""

from holdfast.cli import main
from holdfast.training.sharded import launcher

PATIENCE_S = 600.0
"""A node of a busy machine may come later than those of a real gang wait for it."""

if __name__ == "__main__":
    launcher.GATHER_S = PATIENCE_S
    main()
