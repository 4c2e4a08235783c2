"""Adaptation methods, one file each."""
