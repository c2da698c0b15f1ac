"""Readers: the inputs of every format as raw rows.

A format is a :class:`~pipelines.corpus.readers.formats.Format` in a file of its own, and a line in
:data:`pipelines.catalog.FORMATS`; its name is then a value of `corpus.format`. A format with rows
is also a value of `embedding.format` if ``TABLE_FORMATS`` names it.
"""
