"""Every place where the product reads what somebody else wrote, each with inputs made from what the product writes."""

from workloads.library.tests.fuzz.borders import checkpoints, commands, files, gangs, inference, monitoring
from workloads.library.tests.fuzz.campaign import Border

BORDERS: dict[str, Border] = (
    monitoring.BORDERS | checkpoints.BORDERS | gangs.BORDERS | inference.BORDERS | files.BORDERS | commands.BORDERS
)
