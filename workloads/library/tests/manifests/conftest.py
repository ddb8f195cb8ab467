"""Runs each test with an `env` once for every environment, as the blueprint's own tests."""

from tests.workloads.conftest import env as env
