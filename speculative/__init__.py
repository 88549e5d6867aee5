"""Drafting, verifying, accepting and rewinding tokens on MLX; knows neither requests nor policy."""
