"""Text in, clean sentences and pairs out; :func:`pipelines.corpus.stage.prepare_corpus`."""
