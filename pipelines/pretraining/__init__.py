"""Objectives that have an encoder write texts out again, with weights of their own.

Each is a module with a ``LOSS``, and a line in :data:`pipelines.catalog.LOSSES`, as every loss. It
declares, in a :class:`pipelines.losses.loss.Reconstruction`, its own weights, which are trained
beside the encoder's and left out of the model; what it makes of the texts, as numpy arrays that
follow from (seed, epoch, granule) alone; and a loss of these arrays and of the encoder's hidden
states, see :class:`pipelines.pretraining.torch_head.View`.

These modules are loaded to read settings, so they import arrays and frameworks where they are
called.
"""
