"""Regions written in the formats of labelling tools and benchmarks."""
