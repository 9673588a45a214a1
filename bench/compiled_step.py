"""A compiled update against the same update without a compiler, on one core.

    python -m bench.compiled_step [scale=tiny] [model=micro_moe] [dtype=float32] [rounds=10]
        [optimizers=adamw,…]

With a delay and Error Feedback, of the scale's model or another one. CPU time of the process, in
alternating rounds; the ratio is the median of the rounds' ratios. Before that, what the first
updates take: with an empty cache of torch's compiler (TORCHINDUCTOR_CACHE_DIR) a minute or more,
with a full one seconds.
"""

from statistics import median

from bench.steps import ours, words_of_scale
from bench.timing import cpu_seconds_of, in_turn, options
from trainer.base.resources import reproducible

AT_ONCE = 20
"""Updates of a call: twice the updates between two eigenbases of SOAP."""
LATE = ("pipeline=pipedream_2bw", "correction=error_feedback")


def row(words: list[str], optimizer: str, rounds: int) -> str:
    """A row of the table."""
    steps = {
        way: ours([*words, *LATE, f"optimizer={optimizer}", f"compile={way}"], AT_ONCE)
        for way in ("false", "update")
    }
    first = {way: cpu_seconds_of(step) for way, step in steps.items()}
    seconds = in_turn(steps, rounds, cpu_seconds_of)
    ratios = [new / old for old, new in zip(seconds["false"], seconds["update"], strict=True)]
    plain, compiled = (median(of) / AT_ONCE * 1e3 for of in seconds.values())
    cells = f"{plain:.2f} | {compiled:.2f} | {median(ratios):.2f} | {min(ratios):.2f} … "
    return f"| {optimizer} | {cells}{max(ratios):.2f} | {first['update']:.0f} |"


def main() -> None:
    """Prints the table."""
    defaults = {"optimizers": "adamw,muon,soap", "dtype": "float32", "model": ""}
    given = options(scale="tiny", rounds=10, **defaults)
    model = [f"model={given.model}"] if given.model else []  # else the scale's
    words = words_of_scale(given.scale, f"dtype={given.dtype}", *model)
    print("| | plain, ms | compiled, ms | compiled / plain | least … most | first updates, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    with reproducible(seed=0, num_threads=1):
        for optimizer in given.optimizers.split(","):
            print(row(words, optimizer, given.rounds), flush=True)


if __name__ == "__main__":
    main()
