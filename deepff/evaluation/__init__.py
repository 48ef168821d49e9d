"""The paper's tables and figures, computed on real data and printed next to the published ones."""
