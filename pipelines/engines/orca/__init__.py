"""BigDL's Orca: PyTorch on executors, in the workers of Orca's Estimator.

Orca's part: ``Estimator.from_torch(backend="spark")`` and its ``fit``. It runs the Spark job with a
barrier, sets PyTorch's threads, and joins the workers to one process group of Gloo, by a store on
the driver. Its loop goes through a worker's batches, one per optimiser update.

Our part: a batch is the worker's granules of a step, and the stepper that every engine has makes
the update, with gradients averaged in Orca's process group. So the order of the steps, noise,
schedule, checkpoints and metrics are those of ``local``. Orca's model, which it would wrap and
bring back through Spark, stays empty.
"""
