"""From heat maps to regions: thresholds, refinement, components, names."""
