"""Schedules as data: operations of every rank, and the delay that is counted from them."""
