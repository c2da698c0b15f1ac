"""The evaluations of a model.

A new evaluation is a file with a :class:`pipelines.evaluation.base.Evaluation`, and a line in
:data:`pipelines.catalog.EVALUATIONS`.
"""
