"""Every place where the product reads what somebody else wrote, each with inputs made from what the product writes."""

from tests.fuzz.borders import checkpoints, commands, files, gangs, inference, monitoring
from tests.fuzz.campaign import Border

BORDERS: dict[str, Border] = (
    monitoring.BORDERS | checkpoints.BORDERS | gangs.BORDERS | inference.BORDERS | files.BORDERS | commands.BORDERS
)
