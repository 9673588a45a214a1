"""What a sweep's first device is like, and what to change before the sweep begins."""

from collections.abc import Iterator, Mapping, Sequence

from pipegap.sweeps.plan.pricing import CONTEXT, in_bytes, while_it_runs
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.machine import Machine

SIGNS: Mapping[str, str] = {
    "out of memory": "take more pipeline.num_microbatches, or model.activation_checkpointing=true",
    "No space left": "make room where results= lies",
    "NCCL": "look at NCCL's own words with NCCL_DEBUG=INFO",
}
"""A part of an error's text → what to change."""


def found(machine: Machine, num_gpus: float, store: str) -> str:
    """Return the line on a machine; `num_gpus` are those of the whole cluster."""
    free = f"{in_bytes(machine.free)} free of {in_bytes(machine.total)}"
    return (
        f"machine   {machine.host}: {machine.device} with {free}; {num_gpus:g} GPUs in the "
        f"cluster; torch {machine.torch}, CUDA {machine.cuda}; {in_bytes(machine.disk)} free at "
        f"{store}"
    )


def changes(machine: Machine, todo: Sequence[Trial], needed: int) -> Iterator[str]:
    """Yield what to change; `needed` are the bytes of its device that a trial takes."""
    if needed + CONTEXT > machine.free:
        yield (
            f"free memory: {in_bytes(needed)} are needed beside {in_bytes(CONTEXT)} of libraries. "
            "End other processes, or take more pipeline.num_microbatches"
        )
    written = sum(trial.plan.kept_bytes for trial in todo) + max(map(while_it_runs, todo))
    if written > machine.disk:
        yield f"make room: the sweep writes {in_bytes(written)}; or choose another results="


def cause(message: str) -> str:
    """Return what failed in one line, and what to change, from the text of an error."""
    last = (message.strip().splitlines() or ["no message"])[-1]
    advice = next((advice for sign, advice in SIGNS.items() if sign in message), None)
    return last if advice is None else f"{last}: {advice}"


def largest(trials: Sequence[Trial]) -> Trial:
    """Return the trial that needs most memory on a rank; of equals, one that corrects a delay."""
    return max(trials, key=lambda t: (t.plan.memory_bytes + t.plan.loss_bytes, t.plan.is_delayed))
