"""Image corruptions in torch, batched and seeded per image."""
