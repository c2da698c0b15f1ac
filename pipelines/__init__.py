"""Train sentence encoders inside a Spark cluster, on the engine of your choice."""

__version__ = "0.1.0"
