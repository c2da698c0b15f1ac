"""Every module of the package can be imported where its libraries are installed."""

from import_all import import_errors


def test_every_module_can_be_imported():
    assert import_errors() == {}
