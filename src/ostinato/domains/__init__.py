"""Recognising domains: descriptors of a batch, Gaussian domain states, and the decision."""
