"""What a delay will cost on a larger rung: laws fitted to a ladder of runs, with their risk.

`ladder` finds the rungs in a store, `laws` says what sync's loss and the tax depend on, and fits
many copies of a law at once, `forecast` chooses the form and draws the interval, `answer` says it
or why there is none, `register` keeps forecasts until they can be checked. The equations are in
docs/forecast.md.
"""
