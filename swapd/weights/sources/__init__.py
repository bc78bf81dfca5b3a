"""Where weights come from: each source lists its files and hands out ranges of them; it never writes."""
