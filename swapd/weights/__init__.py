"""The node's own copies of model weights: fetched, verified, kept within limits, read into memory, on orders alone."""

from swapd.weights.cache import WeightCache
from swapd.weights.settings import CacheSettings, CacheStats, CopyView, Limits, Progress, Standing, Weights

__all__ = ["CacheSettings", "CacheStats", "CopyView", "Limits", "Progress", "Standing", "WeightCache", "Weights"]
