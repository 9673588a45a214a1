"""What a core of a Zen 4 was measured to do (27 November 2026), as were trials on it."""

from pipegap.sweeps.plan.devices import Rates

ZEN_4 = Rates({"float32": 104e9, "bfloat16": 209e9}, bytes=92e9, operation=0.68e-6)
