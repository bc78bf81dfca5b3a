"""Tells the cluster what this node has and holds."""
