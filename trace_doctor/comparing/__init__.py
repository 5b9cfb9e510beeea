"""Reports side by side: whether they may be compared, what changed and whether that is proven, and gates on it."""
