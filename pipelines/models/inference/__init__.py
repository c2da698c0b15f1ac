"""The backends that embed with a trained model, by the name of the package that each needs."""
