"""Which engine, and how many workers: strategies of training, measured side by side."""
