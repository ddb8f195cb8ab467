"""All places where the product reads input of others, with inputs made from its own output."""

from workloads.library.tests.fuzz.borders import checkpoints, files, gangs, inference, monitoring
from workloads.library.tests.fuzz.campaign import Border

# tests/test_options.py tests options and arguments of commands.
BORDERS: dict[str, Border] = (
    monitoring.BORDERS | checkpoints.BORDERS | gangs.BORDERS | inference.BORDERS | files.BORDERS
)
