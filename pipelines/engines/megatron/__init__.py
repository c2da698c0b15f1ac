"""Megatron-Core: layers that workers hold together, and stages one behind the other.

The engine, the stepper that a worker trains with, and the forms of encoders in its layers.
"""
