"""Independent references: the semantics and published algorithms, written naively."""
