"""Corruptions, data sets and the streams made of them."""
