"""The crowded world: forty painters and eighteen subjects on a real text encoder; not shipped."""
