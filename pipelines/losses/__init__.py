"""The losses: a module each, and a line in :data:`pipelines.catalog.LOSSES`.

To add one, write a module with its settings (a subclass of
:class:`pipelines.settings.objective.ObjectiveSettings`), a function per framework, and a
:class:`pipelines.losses.loss.Loss` that declares them and its needs. The page of settings, checks
before Spark starts and the rules of resuming follow from these;
``tests/losses/test_adding_a_loss.py`` is an example.
"""
