"""Loaders: files to `Trace`s, one rank each."""
