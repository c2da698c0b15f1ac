"""For tools that look for a ``setup.py``; all that is to be said stands in ``pyproject.toml``."""

from setuptools import setup

setup()
