"""What PyTorch computes on a GPU, held against a CPU, and how fast: ``make gpu-check``.

It needs neither Spark nor anything else that a machine which is lent for an hour has not: see
``docs/measurements/gpu.md``.
"""
