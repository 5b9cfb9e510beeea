"""Hardware: peaks, bandwidths and links, from data files with their sources."""
