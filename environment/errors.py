"""Errors that the scripts of this folder raise."""


class PackageError(Exception):
    """The environment cannot be packed, or does not run; the message says why, and what to do."""
