"""`python -m workloads.library.tests.bench.gangs.full_node ARGUMENTS`: holdfast on a node whose
memory is full.
"""

import holdfast.checkpoint.peers.memory_keeper as keeping
from holdfast.cli import main

if __name__ == "__main__":
    keeping.free_bytes = lambda: 0
    main()
