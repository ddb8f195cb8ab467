"""Makes the loggers of exporter and mover: lines with severity and action, on standard output.

On standard error GKE would treat every line as an error. See holdfast.runtime.logs for the format.
"""

import logging

from holdfast.runtime import logs

Logger = logging.LoggerAdapter[logging.Logger]


def get_logger(action: str) -> Logger:
    """Returns a logger whose lines name `action` as what was being done."""
    return logging.LoggerAdapter(logging.getLogger(f"{logs.NAME}.exporter"), {"action": action})
