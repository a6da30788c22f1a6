"""What people write: concept lists, names to keep, and what kind of thing a name is."""
