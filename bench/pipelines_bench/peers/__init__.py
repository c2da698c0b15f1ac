"""Other libraries' own ways to train, which `compare` measures beside the engines."""
