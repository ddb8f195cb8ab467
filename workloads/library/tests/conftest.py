"""The library's tests are collected as the platform's are, and share their fixtures."""

from tests.conftest import pytest_ignore_collect, require

__all__ = ["pytest_ignore_collect", "require"]
