"""What a run finds, as data: heat maps, factorizations, concept banks, results."""
