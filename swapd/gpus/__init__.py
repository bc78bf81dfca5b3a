"""Knows the node's GPUs: what they are, how they are joined, whether they are sound, how much memory is free."""
