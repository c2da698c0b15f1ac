"""Megatron-Core: layers divided between workers, and stages one behind the other.

The engine, the stepper of its workers, and the forms of encoders in its layers.
"""
