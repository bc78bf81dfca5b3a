"""core/policies."""
