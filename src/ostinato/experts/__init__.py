"""Low-rank experts: the layers, where they are put, and the pool that keeps one set per domain."""
