"""Cloud Monitoring as its writer and its readers use it."""

from google.api_core import exceptions

# Worth another try.
TRANSIENT = (
    exceptions.ServiceUnavailable,
    exceptions.ResourceExhausted,
    exceptions.DeadlineExceeded,
    exceptions.InternalServerError,
    exceptions.Aborted,
)
