"""Model families as data, how a file is recognized as one, and its keys in every spelling."""
