"""Models in the forms of other runtimes, each checked against the model before it appears."""
