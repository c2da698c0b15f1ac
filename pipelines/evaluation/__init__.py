"""What can be measured of a model, in the order in which it is measured and shown.

A new evaluation is a file with a :class:`pipelines.evaluation.base.Evaluation`, and a line here.
"""
