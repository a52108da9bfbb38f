"""Sentence pairs: files, words, packed rows, and their pipeline."""
