"""Lists the transient errors of Cloud Monitoring, for its writer and its readers."""

from google.api_core import exceptions

TRANSIENT = (
    exceptions.ServiceUnavailable,
    exceptions.ResourceExhausted,
    exceptions.DeadlineExceeded,
    exceptions.InternalServerError,
    exceptions.Aborted,
)
