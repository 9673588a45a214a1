"""Names as people write them, for figures, tables and prose; keys and CSVs keep those of conf/.

They are made of the columns of the table of trials, and whatever has no name here keeps its own. A
choice is called as its YAML says (`# name: …`), else by the YAML's name in words, an optimizer in
title case.
"""

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipegap.analysis.table.points import by_point, labelled
from pipegap.analysis.table.points import in_words as exactly
from pipegap.trainer.config.identity import declared, spaced


def title_case(name: str) -> str:
    """`Schedule Free Mine` for `schedule_free_mine`; capital letters stay as they are."""
    return " ".join(word[:1].upper() + word[1:] for word in name.split("_"))


OPTIMIZERS = {
    name: title_case(name) if choice.name is None else choice.name
    for name, choice in declared("optimizer").items()
}
"""The optimizers of conf/."""
REPORTED_ARMS = {
    "delay": "delay",
    "delay_ef": "delay + EF",
    "pipedream": "PipeDream",
    "pipedream_weight_prediction": "PipeDream + weight prediction",
}
"""Arms that others report numbers of: they have no trials, and so no columns."""
IN_NAME = (
    *("arm", "family", "schedule", "method", "coefficient", "lag", "start", "cooldown"),
    *("delay", "pipeline.delay"),
)
"""The columns that the name of an arm is made of."""
KEYS = {
    "clip_norm": "clipping threshold",
    "correction.coefficient": "λ",
    "lr_schedule": "schedule",
    "lr_schedule.warmup": "share of warm-up",
    "num_updates": "updates",
    "optimizer.lr": "learning rate",
    "optimizer.variance_decay": "β₂",
    "seq_len": "sequence length",
}
HEADS = {
    "accuracy_norm": "normalized accuracy",
    "converted": "how converted",
    "cosine": "cosine of late and fresh update",
    "detectable": "detectable difference",
    "device_name": "device",
    "error": "relative error",
    "final_val_loss": "final validation loss",
    "gap_same_seeds": "gap, chosen on the same seeds",
    "git": "code",
    "height": "height of the spike",
    "incomplete": "settings without all seeds",
    "loss_sync": "sync loss",
    "margin": "margin of right answers",
    "mean_height": "mean height of the spike",
    "measured": "late updates measured",
    "memory ratio": "memory, over sync's",
    "num_microbatches": "microbatches",
    "num_points": "settings tried",
    "num_stages": "stages",
    "of": "interval over",
    "other": "other optimizer",
    "p": "p of McNemar's test",
    "rates": "learning rate and decay",
    "recovered": "spikes recovered from",
    "recovery": "updates to recover",
    "regime": "outside of the regime",
    "removed": "gap removed",
    "setting_sync": "sync setting",
    "share": "share of right answers",
    "speed ratio": "speed, over sync's",
    "switch": "update of the switch",
    "tax": "token tax",
    "tax_why": "why no tax",
    "time ratio": "time, over sync's",
    "trial_id": "trial",
    "who": "whose",
}
"""Columns of tables → their heads. Any other column is called by its name."""
COUNTED = re.compile("(.+)[_ ]n")
VALUES = {"inverse_sqrt": "inverse square root", "wsd": "WSD"}
WORDS = OPTIMIZERS | REPORTED_ARMS
WORD = re.compile(r"(?<![\w=/.-])[a-z_]+\b(?![=(/.])")
SETTING = re.compile(r"\b([a-z]+[._][a-z_.]+)=([^\s,;)]+)")
"""Of a key with a group or of several words: `n=3` is none, nor is `sweep=optimizers`."""
NEGATIVE = re.compile(r"(?<![\w.\-])-(?=[\d.])")


def optimizer(name: object) -> str:
    """Return the name that authors give an optimizer; one that conf/ lacks is in title case."""
    return OPTIMIZERS.get(str(name)) or title_case(str(name))


def key(name: object) -> str:
    """Return what a key of the config is called: `optimizer.lr` is the learning rate."""
    return KEYS.get(str(name), str(name).rpartition(".")[2].replace("_", " "))


def head(column: str, arms: Mapping[str, str]) -> str:
    """Return the head of a column; `arms` are the names of arms: `delay_ef gap` is delay + EF gap.

    `x_n` and `x n` count what is behind `x`.
    """
    if column in HEADS:
        return HEADS[column]
    if match := COUNTED.fullmatch(column):
        return f"{head(match[1], arms)}, n"
    arm_names = REPORTED_ARMS | {"sync": "sync"} | dict(arms)
    parts = column.split(" ")  # an arm and a quantity, as in `delay_ef gap`
    return " ".join(arm_names.get(part) or HEADS.get(part) or key(part) for part in parts)


def value(raw: Any) -> str:
    """Return the text of a value of the config; `none` if it is missing."""
    if pd.api.types.is_scalar(raw) and pd.isna(raw):
        return "none"
    if isinstance(raw, float):
        return minus(f"{raw:g}")
    return VALUES.get(str(raw), minus(str(raw)))


def minus(text: str) -> str:
    """Return the text with − where a number is negative; `2BW-like` and `1e-05` stay."""
    return NEGATIVE.sub("−", text)


def signed(number: float) -> str:
    """Return `+0.405` or `−0.012`."""
    return minus(f"{number:+.3f}")


def prose(text: object) -> str:
    """Return a sentence about keys of conf/ with their names.

    `muon (optimizer.lr=0.004), delay_ef` becomes `Muon (learning rate 0.004), delay + EF`.
    """
    text_with_names = SETTING.sub(
        lambda match: f"{key(match[1])} {VALUES.get(match[2], match[2])}", str(text)
    )
    # Then single words: the names of optimizers and arms, but not those within a setting or path.
    return minus(WORD.sub(lambda match: WORDS.get(match[0], key(match[0])), text_with_names))


def parameters(number: float) -> str:
    """Return the size of a model as people write it: `135M`; `unknown` where it is missing."""
    if pd.isna(number):
        return "unknown"
    units = ((1e9, "B"), (1e6, "M"), (1e3, "k"), (0, ""))
    size, letter = next((size, letter) for size, letter in units if number >= size)
    return f"{number / (size or 1):.3g}{letter}"


def in_words(values: pd.Series | Mapping[str, Any]) -> str:
    """Return keys of the config and their values: `learning rate 0.004, batch size 16`."""
    return ", ".join(f"{key(name)} {value(raw)}" for name, raw in values.items())


def settings(trials: pd.DataFrame) -> dict[str, str]:
    """Return for each point, in words, the keys that differ among the points of its optimizer;
    where two points would have the same words, as of 0.1 and 0.1000001, the keys as they are."""
    words: dict[str, str] = {}
    for table in labelled(trials):
        of_table = by_point([table], in_words)
        is_told = len({*of_table.values()}) == len(of_table)
        words |= of_table if is_told else by_point([table], exactly)
    return words


def arms(trials: pd.DataFrame) -> dict[str, str]:
    """Return the name of each arm of `load`'s table: `delay + EF (λ = 0.5), sync start 10 %`."""
    return _by_label(trials, "arm")


def families(trials: pd.DataFrame) -> dict[str, str]:
    """Return the name of each family of arms, that of the arm without its coefficient."""
    return _by_label(trials, "family")


def _by_label(trials: pd.DataFrame, column: str) -> dict[str, str]:
    """Return names by label; labels that would share a name, as an option has none, keep theirs.

    Each is of the first row of the label, of one with a counted delay if there is such a row.
    """
    # An arm's first trial may be unfinished, and its delay not counted: NaN sorts last.
    late_first = trials[[column, "delay"]].sort_values("delay", ascending=False, kind="stable")
    columns = [name for name in IN_NAME if name in trials]
    rows = trials.loc[late_first.drop_duplicates(column).index, columns].to_dict("records")
    words = {str(row[column]): _arm(row, with_coefficient=column == "arm") for row in rows}
    names = [*words.values()]
    return {
        label: name if names.count(name) == 1 else f"{name} ({label})"
        for label, name in words.items()
    }


def _arm(row: Mapping[Any, Any], *, with_coefficient: bool) -> str:
    if row["arm"] == "sync":
        return "sync"
    schedule, method = str(row["schedule"]), str(row["method"])
    delay = row.get("pipeline.delay", row.get("delay"))
    name = of_kind("pipeline", schedule).format(delay=value(delay))
    correction = of_kind("correction", method)
    if correction:
        name += f" + {correction}" + _options(row, with_coefficient)
    for phase in ("start", "cooldown"):
        if length := row[phase]:  # a share of the run below 1, else a number of updates
            length_text = f"{100 * length:g} %" if length < 1 else f"{length:g} updates"
            name += f", sync {phase} {length_text}"
    return name


def of_kind(group: str, kind: str) -> str:
    """Return the name of a pipeline or correction by its `kind` (`trainer.config.identity`)."""
    choice = declared(group).get(kind)
    name = None if choice is None else choice.name
    return spaced(kind.rpartition(".")[2]) if name is None else name


def _options(row: Mapping[Any, Any], with_coefficient: bool) -> str:
    coefficient, lag = row["coefficient"], row["lag"]
    choice = declared("correction").get(str(row["method"]))
    # A correction whose arm names its coefficient shows it always, else unless it is the usual one.
    usual = {} if choice is None or "{coefficient}" in choice.arm else choice.usual
    parts = []
    if with_coefficient and pd.notna(coefficient) and coefficient != usual.get("coefficient"):
        parts.append(f"λ = {coefficient:,g}")
    if pd.notna(lag) and lag != "1":
        parts.append("lag τ" if lag == "delay" else f"lag {lag}")
    return f" ({', '.join(parts)})" if parts else ""
