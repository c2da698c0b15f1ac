"""The simulation of more workers, held against hosts whose links are slow."""
