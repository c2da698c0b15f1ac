"""One module per command: the job as a function, and `command`, which also prints its result."""
