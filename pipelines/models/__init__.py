"""The architectures of encoders, by name. A new one is a folder here, and a line below."""
