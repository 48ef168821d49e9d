"""Regions written in the formats of labeling tools and benchmarks."""
