"""What BigDL's dllib lacks, in Java: the encoder's layers, AdamW, a worker's granules.

The classes are compiled in the driver's JVM by the compiler that Spark itself uses for its queries,
and sent to the executors by Spark; so they need no Java compiler and no build step.
"""

from pipelines.engines.bigdl.jvm.classes import PACKAGE, provide_classes

__all__ = ["PACKAGE", "provide_classes"]
