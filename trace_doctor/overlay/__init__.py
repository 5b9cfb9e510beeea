"""Overlay: the analysis drawn over the timeline it was made from, for https://ui.perfetto.dev."""
