"""Fixtures that build manifests as parsed data, to be edited by path."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import manifests


@pytest.fixture
def full_job() -> Path:
    """A manifest with every field."""
    return manifests.FULL_JOB


@pytest.fixture
def full() -> Callable[..., dict[str, Any]]:
    """Builds the full manifest with edits, as parsed data."""
    return manifests.full


@pytest.fixture
def minimal() -> Callable[..., dict[str, Any]]:
    """Builds the shortest manifest with edits, as parsed data."""
    return manifests.minimal
