"""What the scripts of this folder raise on purpose."""


class PackageError(Exception):
    """The environment cannot be packed, or does not run; the text says why, and what to do."""
