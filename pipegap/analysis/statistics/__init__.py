"""Paired gaps and what may be said of them: intervals, power, spikes, overhead."""
