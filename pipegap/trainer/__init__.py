"""One trial: a pipeline-parallel training run with an exact, counted gradient delay."""

if __name__ == "trainer":  # found beside the package, in a checkout
    raise ImportError("pipegap: its packages have one name: import pipegap.trainer")
