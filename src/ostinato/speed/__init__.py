"""How long a batch takes and how much memory, beside the forward alone."""
