"""Loads the exports of Nsight Systems into the frames of a Trace: SQLite, folders of Parquet or Arrow, and reports themselves.

`database` and `folder` open an export, `export` makes one of a report, `tables` says what is read; the other modules turn tables
into frames, and `loading` puts them together.
"""
