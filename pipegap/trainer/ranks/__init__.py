"""The ranks of a true pipeline: how they find each other, start, are watched and end."""
