"""Classifiers: every nanosecond of every GPU to one cause."""
