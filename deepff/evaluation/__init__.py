"""The paper's tables and figures, computed on real data and printed beside what is published."""
