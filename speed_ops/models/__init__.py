"""Model families as data, how a file is recognised as one, and its keys in every spelling. Reads no
file.
"""
