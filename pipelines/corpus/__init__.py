"""The corpus stage: text in, clean pairs out (:func:`pipelines.corpus.stage.prepare_corpus`)."""
