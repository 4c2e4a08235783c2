"""Scoring: what a run keeps of a batch, and every figure that follows from it."""
