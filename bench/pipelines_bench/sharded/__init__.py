"""What workers hold of an encoder that one process cannot hold, beside what a formula says.

Without Spark: the workers are processes of this machine, with the steppers and the exchange of the
engines `torch` and `deepspeed`.
"""
