"""Puts a simulated gcloud first on PATH, as the platform's own commands are tested with."""

from tests.infra.ops.conftest import gcloud as gcloud
