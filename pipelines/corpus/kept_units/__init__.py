"""What each input file gave, kept beside the corpus: only new and changed files are read again."""
