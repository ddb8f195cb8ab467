"""Every place where the product reads what somebody else wrote, each with inputs made from what the
product writes.
"""

from workloads.library.tests.fuzz.borders import checkpoints, files, gangs, inference, monitoring
from workloads.library.tests.fuzz.campaign import Border

# Options and arguments of commands: tests/test_options.py.
BORDERS: dict[str, Border] = (
    monitoring.BORDERS | checkpoints.BORDERS | gangs.BORDERS | inference.BORDERS | files.BORDERS
)
