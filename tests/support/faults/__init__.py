"""Trainings on three hosts that something goes wrong under, and what becomes of them.

`python -m faults` (`make faults`) runs cells of the matrix engine x fault x moment, and writes
`docs/reference/faults.md`. A cell is a job of the command line on a Spark cluster of its own, on
hosts of namespaces; see :mod:`hosts`. What is done to it comes from outside: nothing in it is
instrumented.
"""
