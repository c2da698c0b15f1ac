"""Figures that may not slip: a file of benchmarks with bounds, and the command that holds them."""
