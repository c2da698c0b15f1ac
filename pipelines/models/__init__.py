"""The architectures of encoders: a folder each, and a line in the catalog."""
