"""Where a run is followed while it goes on: MLflow, TensorBoard."""
