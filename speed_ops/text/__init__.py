"""From what a user types to the embedding rows that the engine solves with.

Import the modules one by one; nothing is loaded from here, so that parsing a list stays light.

    phrases, retain        lists of concepts and of names to keep
    kinds, ladder          contexts to put a name into, and ways to ask for it
    tokens, streams, plan  which rows of which prompts stand for a name
    encoder                what a text encoder must offer; clip_encoder, t5_encoder and joined_encoder do
    embedding_cache        rows on disk
    gather                 all of it together
"""
