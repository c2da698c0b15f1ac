"""Embedding with a trained model, by one of several libraries."""
