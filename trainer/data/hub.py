"""The documents of a data set of the Hugging Face hub, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer.base.errors import BadInput
from trainer.data.readers import no_field
from trainer.data.stream import State


class HubDocuments:
    """Documents of a data set: those that are not empty, of one field.

    `name` may also be a folder with a copy of the data set, such as its parquet files. Files that
    were read before are not read again when a stream goes on (`Stateful`).
    """

    def __init__(
        self, name: str, *, config: str | None, split: str, revision: str | None, field: str
    ) -> None:
        self._name, self._field = name, field
        try:
            from datasets import load_dataset

            self._rows: Any = load_dataset(
                name, config, split=split, revision=revision, streaming=True
            )
        except ImportError:
            allowed = "needs the package datasets: pip install 'pipegap[hub]'"
            raise BadInput("data.name", name, allowed) from None
        except Exception as error:  # datasets, the hub's client and the network have their own
            raise _unreachable(name, error) from None

    def __iter__(self) -> Iterator[str]:
        """Raises BadInput where the field is missing, or the hub no longer answers."""
        rows = iter(self._rows)
        while (row := self._next(rows)) is not None:
            if self._field not in row:
                raise no_field(self._field, self._name, ", ".join(row))
            if (text := row[self._field]) and text.strip():
                yield text

    def _next(self, rows: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        try:
            return next(rows, None)
        except Exception as error:
            raise _unreachable(self._name, error) from None

    def state_dict(self) -> State:
        """Where the stream is: a file, and a row in it."""
        state: State = self._rows.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Makes the next iteration start there."""
        self._rows.load_state_dict(state)


def _unreachable(name: str, error: Exception) -> BadInput:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    allowed = (
        f"must be a data set that can be read from the Hugging Face hub ({reason}); "
        "or use files: data=text, data=bins"
    )
    return BadInput("data.name", name, allowed)


def newest_commit(name: str) -> str:
    """The newest commit of a data set; raises BadInput if there is none or no hub."""
    try:
        from huggingface_hub import HfApi

        return str(HfApi().dataset_info(name).sha)
    except Exception as error:
        raise _unreachable(name, error) from None
