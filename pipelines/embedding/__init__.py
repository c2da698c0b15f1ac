"""A column of vectors for any table, brought up to date by what has changed in it.

A kind of table that the rows can be merged into is a
:class:`~pipelines.embedding.merge.MergeFormat`, and a line in
:data:`pipelines.catalog.MERGE_FORMATS`.
"""
