"""The 40-painter test set: painters and subjects, read by a real text encoder; not shipped."""
