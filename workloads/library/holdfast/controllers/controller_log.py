"""The log of exporter and mover: lines with severity and action, as every process of a pod writes
them (holdfast.runtime.logs).

On standard error GKE would call each of them an error.
"""

import logging

from holdfast.runtime import logs

Logger = logging.LoggerAdapter[logging.Logger]


def logger(action: str) -> Logger:
    """`action`: what is being done when a line is written."""
    return logging.LoggerAdapter(logging.getLogger(f"{logs.NAME}.exporter"), {"action": action})
