"""BigDL's Orca: PyTorch on executors, in the workers of Orca's Estimator.

Orca contributes ``Estimator.from_torch(backend="spark")`` and its ``fit``. It runs the Spark job
with a barrier, sets PyTorch's threads, and joins the workers to one process group of Gloo, by a
store on the driver. Its loop goes through a worker's batches, one per optimiser update.

In this package, a batch is the worker's granules of a step. The common stepper of all engines makes
the update, with gradients averaged in Orca's process group. So the order of the steps, noise,
schedule, checkpoints and metrics are those of ``local``. Orca would wrap its model and bring it
back through Spark, so that model stays empty.
"""
