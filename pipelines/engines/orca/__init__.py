"""BigDL's Orca: PyTorch on executors, in the workers of Orca's Estimator.

What is Orca's: ``Estimator.from_torch(backend="spark")`` and its ``fit``. It runs the Spark job
with a barrier, gives PyTorch its threads, has the workers meet at a store on the driver and join
one process group of Gloo, and its loop goes through a worker's batches, one per optimiser update.

What is ours: a batch is the worker's granules of a step, and an update is made by the stepper that
every engine has, with gradients averaged in Orca's process group. So the order of the steps, the
noise, the schedule, checkpoints and metrics are those of ``local``. Orca's model, which it would
wrap and bring back through Spark, stays empty.
"""
