"""Tools for asyncio code that know nothing of models, GPUs or requests."""
