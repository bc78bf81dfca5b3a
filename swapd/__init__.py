"""swapd: a node-local model-swap daemon."""

__version__ = "0.1.0"
