"""The programs of the corpus, by theme."""
