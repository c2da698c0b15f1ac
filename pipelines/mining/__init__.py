"""Hard negatives: documents that a model finds near an anchor, and that are not its positives.

What leaves a document out is a :class:`~pipelines.mining.choosing.Filter`, and how documents are
found a :class:`~pipelines.mining.choosing.Search`; each has a line in the catalog.
"""
