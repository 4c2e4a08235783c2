"""Corruptions, data sets and the streams made of them.

`datasets` reads images by name and position; `streams.build_stream` makes a stream of domains
from a name and settings; `check.check` and `fetch.fetch` look after what is on disk.
"""
