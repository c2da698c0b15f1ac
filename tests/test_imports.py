"""Every module of the package can be imported where its libraries are installed."""

import pytest
from import_all import import_errors
from module_graph import reached, read_modules
from test_layout import HEAVY


def is_heavy(name: str) -> bool:
    """Whether a module needs a library that takes seconds as soon as it is imported."""
    return any(found.partition(".")[0] in HEAVY for found in reached(name, read_modules()))


# What needs such a library is imported by its own tests, too.
@pytest.mark.parametrize("heavy", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_every_module_can_be_imported(heavy):
    modules = [name for name in read_modules() if is_heavy(name) == heavy]
    assert len(modules) > 40
    assert import_errors(modules) == {}
