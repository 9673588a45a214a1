"""The tests: folders like the code; `oracles/` are independent references, `support/` helpers."""
