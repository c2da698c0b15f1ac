"""Fixtures that embedding and search share."""

from embedding_fixtures import job, lines, minilm_folder, sentence_file, small_model

__all__ = ["job", "lines", "minilm_folder", "sentence_file", "small_model"]
