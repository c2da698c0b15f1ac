"""Shared by the tests of the pages."""

from pathlib import Path

import pytest
from logged_runs import write_run


@pytest.fixture
def run(tmp_path) -> Path:
    """The folder of a finished run; its corpus is in ``prepared`` beside it."""
    return write_run(tmp_path)
