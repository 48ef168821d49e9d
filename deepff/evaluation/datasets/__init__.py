"""Ground truth of public data sets, all in one form: :mod:`.ground_truth`."""
