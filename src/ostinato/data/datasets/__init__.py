"""Data sets by name, one small file each."""
