"""Readers: the inputs of every format as raw rows.

A format is a :class:`~pipelines.corpus.readers.formats.Format` in a file of its own, and a line in
:data:`pipelines.catalog.FORMATS`. Its name is then a value of `corpus.format`. Where it has rows,
its name in ``TABLE_FORMATS`` makes it a value of `embedding.format`, too.
"""
