"""Shows a sweep's trials elsewhere while they run; no tracker can harm or hold up a trial."""
