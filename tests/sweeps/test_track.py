"""The delay track: an entry is entered and verified, and a forged table is refused in one line."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from findings.track import __main__ as page
from pipegap.analysis import track
from pipegap.analysis.table.load import load
from pipegap.sweeps.__main__ import main
from pipegap.sweeps.commands import enter, verify
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.entry import check_code, check_entry
from pipegap.sweeps.request.expand import Trial, points
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.compose import Composer
from pipegap.trainer.folder.wellformed import Row
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.markdown import ROOT, shell_lines, write_files
from tests.support.own_files import as_in_a_new_process

CODE = '''
"""Sign descent: each entry of a weight moves by the learning rate."""
import torch
from torch.optim import Optimizer
from pipegap.trainer.base.ranges import NonNegative, Positive
from pipegap.trainer.optimizers.routing import Parameters, decaying


def descent(parameters: Parameters, *, lr: Positive, weight_decay: NonNegative) -> Optimizer:
    return Descent(decaying(parameters, weight_decay), {"lr": lr})


class Descent(Optimizer):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(weight.grad.sign(), alpha=group["lr"])
'''
SAYS = {
    "what": "Each entry of a weight moves by the learning rate.",
    **dict.fromkeys(("source", "authors", "licence"), "none"),
    "predicted": "+",
    "optimizer": "descent",
}
SMALL = [word for word in small_sweep.SMALL if not word.startswith("optimizer.lr")]
Forge = Callable[[Path], object]
Captured = pytest.CaptureFixture[str]
RUN_HERE = verify.run_here
DOCUMENT = ROOT / "docs" / "track.md"


def write_entry(folder: Path, code: str = CODE, **says: Any) -> Path:
    (folder / "optimizer").mkdir(parents=True)
    (folder / "descent.py").write_text(code)
    choice = {"_target_": "descent.descent", "lr": 0.01, "weight_decay": 0.1}
    (folder / "optimizer" / "descent.yaml").write_text(yaml.safe_dump(choice))
    (folder / "entry.yaml").write_text(yaml.safe_dump({**SAYS, **says}))
    return folder


def train(entry: Path, results: Path, words: Sequence[str]) -> str:
    """Run the trials of an entry and enter them; return what `enter` says."""
    with as_in_a_new_process():
        while True:
            snapshot = Snapshot()
            plan = enter.plan_of(entry, results, words, snapshot)
            todo = [trial for trial in plan.runnable if snapshot.finished(trial) is None]
            if not todo:
                return enter.enter(entry, str(results), words)
            run_in_turn(todo)


def run_in_turn(trials: Sequence[Trial], code: Path | None = None) -> dict[str, Row]:
    """What `verify.run_here` returns, without processes, which each take seconds to start."""
    return {trial.trial_id: run_trial(trial.config) for trial in trials}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of the request: small trials, few of them."""
    corpus = small_sweep.corpus(tmp_path_factory.mktemp("data"))
    tuned = ["tune.optimizer.lr=[0.5, 1, 2]", "seeds=[0, 1, 2]"]
    half = "arms.sync_half=[pipeline=sync, num_updates=6]"
    return ["scale=micro", f"data.path={corpus}", *SMALL, *tuned, half]


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory, words: list[str]) -> Path:
    """An entry with its table."""
    folder = tmp_path_factory.mktemp("track")
    entry = write_entry(folder / "descent")
    said = train(entry, folder / "results", words)
    assert said.startswith(f"{entry / 'trials.csv'}: ")
    return entry


@pytest.fixture
def entry(entered: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of it, for tests that forge it."""
    with as_in_a_new_process():
        yield Path(shutil.copytree(entered, tmp_path / "entry"))


@pytest.fixture(autouse=True)
def few_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "run_here", run_in_turn)
    monkeypatch.setattr(verify, "NUM_HIDDEN", 2)


def verified(entry: Path, words: Sequence[str], num_drawn: int = 8) -> str:
    place = entry.parent
    return verify.verify(entry, place / "store", place / "code", words, num_drawn=num_drawn)


def change(entry: Path, wanted: Callable[[dict[str, str]], bool], **values: object) -> None:
    """Change the first row of the table that is `wanted`."""
    path = entry / "trials.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    row = next(row for row in rows if wanted(row))
    row |= {key: str(value) for key, value in values.items()}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)


def test_an_entry_stands(entry: Path, words: list[str]) -> None:
    said = verified(entry, words)
    assert f"{entry} stands: " in said
    assert "\n" not in said
    table = load(entry / "trials.csv")
    assert len(table) == len(set(table["trial_id"])) == 4 * 3 + len(table[table["seed"] == 500])
    assert set(table["arm"]) == {"sync", "delay", "delay_ef"}
    assert table["processor"].notna().all()
    cost = json.loads((entry / "cost.json").read_text())
    assert cost["state_per_parameter"] == 0


@pytest.mark.slow
def test_the_page_runs_word_for_word(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """docs/track.md from an empty folder to a verified entry, with words for small trials behind;
    `verify` trains in processes of its own."""
    monkeypatch.setattr(verify, "run_here", RUN_HERE)
    monkeypatch.chdir(tmp_path)
    write_files(DOCUMENT, tmp_path)
    commands = [line[1:] for line in shell_lines(DOCUMENT) if line[:1] == ["pipegap"]]
    assert [line[0] for line in commands[:3]] == ["sweep", "enter", "verify"]
    for line in commands[:3]:
        with as_in_a_new_process():
            assert main([*line, *words]) == 0, capsys.readouterr()
    said = capsys.readouterr().out
    assert "\nentries/sign_step stands: " in said
    assert "(by other rules: scale=micro " in said


def last_digit(entry: Path) -> None:
    """Every loss: which of them are drawn, nobody can choose."""
    path = entry / "trials.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["final_val_loss"] = repr(float(np.nextafter(float(row["final_val_loss"]), 9)))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)


def better_seed(entry: Path) -> None:
    """The trial of one seed is said to be that of another."""
    change(entry, lambda row: row["arm"] == "delay" and row["seed"] == "2", seed=7)


def relabel(entry: Path, column: str, labels: dict[str, str]) -> None:
    """Change the labels of a column in all rows."""
    path = entry / "trials.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows({**row, column: labels.get(row[column], row[column])} for row in rows)


def swapped_arms(entry: Path) -> None:
    """All trials of an arm are said to be those of the other one, which ends lower."""
    relabel(entry, "arm", {"delay": "delay_ef", "delay_ef": "delay"})


def other_optimizer(entry: Path) -> None:
    relabel(entry, "optimizer", {"descent": "adamw"})


def other_number_of_updates(entry: Path) -> None:
    """A synchronous trial of half the length, which ends higher, is said to have the whole."""
    change(entry, lambda row: row["num_updates_asked"] == "6", num_updates_asked=12)


def without_a_seed(entry: Path) -> None:
    path = entry / "trials.csv"
    lines = path.read_text().splitlines(keepends=True)
    at = lines[0].split(",").index("arm")
    late = [line for line in lines[1:] if line.split(",")[at] == "delay"]
    path.write_text("".join(line for line in lines if line != late[0]))


def other_rate(entry: Path) -> None:
    """Another rate, which is better under delay, is to look best on sync: the rule then asks for
    other trials than there are."""
    table = load(entry / "trials.csv")
    tried = table[table["seed"] == 500].sort_values("final_val_loss")
    second = tried["trial_id"].iloc[1]
    change(entry, lambda row: row["trial_id"] == second, final_val_loss=0.5)


def other_code(entry: Path) -> None:
    with (entry / "descent.py").open("a") as file:
        file.write("# edited\n")


def other_cost(entry: Path) -> None:
    (entry / "cost.json").write_text('{"state_per_parameter": 1.0}')


def other_length(entry: Path) -> None:
    change(entry, lambda row: row["arm"] == "delay", trial_id="0123456789abcdef")


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (last_digit, "on the same kind of processor"),
        (better_seed, "seed=7: must be 2 of trial"),
        (swapped_arms, "arm=delay(_ef)?: must be delay(_ef)? of trial"),
        (other_optimizer, "optimizer=adamw: must be descent of trial"),
        (other_number_of_updates, "num_updates_asked=12: must be 6 of trial"),
        (without_a_seed, "lacks 1 trials that the rules ask for, such as descent"),
        (other_rate, "lacks 12 trials that the rules ask for"),
        (other_code, "lacks .* trials that the rules ask for"),
        (other_cost, "must be 0.0"),
        (other_length, "lacks 1 trials"),
    ],
)
def test_a_forged_table_is_refused(entry: Path, words: list[str], forge: Forge, why: str) -> None:
    forge(entry)
    with pytest.raises((BadInput, verify.Refused), match=why) as refusal:
        verified(entry, words)
    assert "\n" not in str(refusal.value)


def test_one_loss_changed_in_its_last_digits_is_seen_if_all_are_drawn(
    entry: Path, words: list[str]
) -> None:
    path = entry / "trials.csv"
    late = load(path)
    late = late[(late["arm"] == "delay_ef") & (late["seed"] == 1)].iloc[0]
    loss = float(np.nextafter(late["final_val_loss"], 9))
    change(entry, lambda row: row["trial_id"] == late["trial_id"], final_val_loss=repr(loss))
    with pytest.raises(verify.Refused, match=f"trial {late['trial_id']} .* {loss!r} in the table"):
        verified(entry, words, num_drawn=100)


def test_whom_the_draw_hits_depends_on_losses_and_salt(entry: Path, words: list[str]) -> None:
    table = load(entry / "trials.csv")
    changed = table.assign(final_val_loss=np.nextafter(table["final_val_loss"], 9))
    rows = [t.to_dict("records") for t in (table, changed)]
    prints = {verify.fingerprint(t, salt) for t in rows for salt in ("", "a")}
    assert len(prints) == 4
    assert verify.fingerprint(rows[0][::-1], "") in prints


def test_a_trial_at_a_rate_tuned_on_delay_is_refused(entry: Path, words: list[str]) -> None:
    """A trial beside those of the rules: the table's author looked at delay to choose."""
    with as_in_a_new_process():
        plan = enter.plan_of(entry, entry.parent / "more", words)
        late = plan.points[0].choice.point.at({"optimizer.lr": 0.02}).trials([0])[1]
        row = run_trial(late.config)
    lines = (entry / "trials.csv").read_text().splitlines()
    other = lines[1].split(",")
    other[lines[0].split(",").index("trial_id")] = row["trial_id"]
    (entry / "trials.csv").write_text("\n".join([*lines, ",".join(other)]) + "\n")
    with pytest.raises(BadInput, match="has 1 trials that the rules do not ask for"):
        verified(entry, words)


def test_another_kind_of_processor_may_round_otherwise(entry: Path, words: list[str]) -> None:
    last_digit(entry)
    path = entry / "trials.csv"
    processor = load(path)["processor"].iloc[0]
    path.write_text(path.read_text().replace(processor, "another"))
    assert " 0 to the same bits" in verified(entry, words)
    table = load(path)
    for trial in table["trial_id"]:
        loss = table.set_index("trial_id")["final_val_loss"][trial] + 0.3
        change(entry, lambda row, trial=trial: row["trial_id"] == trial, final_val_loss=loss)
    shutil.rmtree(entry.parent / "code")
    with as_in_a_new_process(), pytest.raises(verify.Refused, match="apart at most on another"):
        verified(entry, words)


READS = {
    "import os": "os",
    "from pathlib import Path": "pathlib.Path",
    "import torch.utils.data": "utils",
    "from pipegap.trainer.data.shards import Tokens": "pipegap.trainer.data.shards.Tokens",
    "text = open('data/wiki/validation-00000.bin').read()": "open",
    "import torch\nx = torch.load('data/wiki/validation.pt')": "load",
    "import torch\nx = torch.from_file('data/wiki/validation-00000.bin', size=9)": "from_file",
    "import torch\nx = torch.os.listdir('data')": "os",
    "x = ().__class__": "__class__",
    "x = eval('1')": "eval",
    "import torch\nx = getattr(torch, 'lo' + 'ad')": "getattr",
    "from torch import load": "load",
}


@pytest.mark.parametrize("code", READS)
def test_code_that_reads_a_file_is_refused(code: str, tmp_path: Path) -> None:
    entry = write_entry(tmp_path / "entry", f"{CODE}\n{code}\n")
    with pytest.raises(BadInput, match=f"must not use {READS[code]}:") as refusal:
        check_entry(entry)
    assert "\n" not in str(refusal.value)


def test_our_own_files_show_that_the_rules_leave_room() -> None:
    """Of the optimizers in docs/extending.md, and of ours that need nothing else of pipegap's."""
    package = Path(verify.__file__).parents[2] / "trainer"
    for name in ("optimizers/dion.py", "corrections/none.py", "corrections/compensation.py"):
        check_code(package / name)


def test_the_code_opens_no_data_while_it_is_verified(tmp_path: Path) -> None:
    """Whatever the syntax hides, the process that trains sees the file that is opened."""
    data, code = tmp_path / "data", tmp_path / "code"
    for folder in (data, code):
        folder.mkdir()
    (data / "validation.bin").write_text("tokens")
    (code / "reads.py").write_text("def read(path):\n    return open(path).read()\n")
    program = f"""
import sys
from pathlib import Path
from pipegap.sweeps.commands.verify import _guard
_guard({str(code)!r}, [{str(data)!r}])
sys.path.append({str(code)!r})
import reads
assert Path({str(data / "validation.bin")!r}).read_text() == "tokens"
assert reads.read({str(code / "reads.py")!r})
reads.read({str(data / "validation.bin")!r})
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert "PermissionError: the entry's code opens the data" in done.stderr


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"predicted": "up"}, "predicted=up: must be"),
        ({"correction": "taylor"}, "must be named, or else a correction, not both"),
        ({"optimizer": "adamw"}, "is the name of one of ours"),
        ({"settings": {"optimizer.lr": 0.1}}, "that the rules do not set"),
        ({"settings": {"seed": 3}}, "that the rules do not set"),
        ({"colour": "red"}, "colour=red"),
    ],
)
def test_what_an_entry_says_is_checked(says: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=why):
        check_entry(write_entry(tmp_path / "entry", **says))


def test_the_arms_and_rates_of_an_entry() -> None:
    """An optimizer is tuned from its own rate, with as much decay as AdamW, or none if it is made
    to go without; a correction is entered with three optimizers; levels are delays."""
    only = small_sweep.only
    lion = only("sweep=entry", "optimizer=lion")
    assert lion.grid["optimizer"] == [
        {"optimizer": "lion", "optimizer.lr": 0.0005, "optimizer.weight_decay": 4.0}
    ]
    assert lion.tuning.inverse == ["optimizer.weight_decay"]
    assert [*lion.arms] == ["sync", "delay", "delay_ef", "sync_half"]
    assert parse_request(["sweep=entry"]).scale == "tiny"
    sphere = only("sweep=entry", "optimizer=muonh", "scale=micro")
    assert sphere.grid["optimizer"] == [{"optimizer": "muonh", "optimizer.lr": 0.01}]
    assert sphere.tuning.inverse == []
    taylor = only("sweep=entry", "correction=taylor", "levels=[1, 2]")
    assert [point["optimizer"] for point in taylor.grid["optimizer"]] == ["adamw", "muon", "soap"]
    assert [*taylor.arms][1:3] == ["constant_delay(1)", "constant_delay(1)_taylor"]
    with pytest.raises(BadInput, match="is an entry of its own"):
        only("sweep=entry", "optimizer=lion", "correction=taylor")


@pytest.mark.parametrize("entry", sorted((ROOT / "entries").iterdir()), ids=lambda path: path.name)
def test_every_entry_has_trials_that_are_possible(entry: Path, tmp_path: Path) -> None:
    request = parse_request(["sweep=entry", f"code={entry}"])
    [sweep] = request.sweeps.values()
    for point in points(sweep, tmp_path, Composer(request.if_there)):
        trials = point.trials(sweep.seeds[:1])
        assert len({trial.trial_id for trial in trials}) == len(sweep.arms)


def test_an_optimizer_that_averages_weights_is_entered_without_error_feedback(
    tmp_path: Path,
) -> None:
    own = CODE.replace("import Parameters,", "import Parameters, averaging,")
    own = own.replace("def descent(", "@averaging\ndef descent(")
    with as_in_a_new_process():
        arms = small_sweep.only("sweep=entry", f"code={write_entry(tmp_path / 'own', own)}").arms
    assert [*arms] == ["sync", "delay", "sync_half"]
    assert [*small_sweep.only("sweep=entry", "optimizer=schedule_free_adamw").arms] == [*arms]


def test_hidden_seeds_refuse_one_right_entry_in_a_hundred() -> None:
    """Of tables and hidden seeds of one distribution; a shift by two deviations is seen."""
    random, num_refused, num_seen = np.random.default_rng(0), 0, 0
    for _ in range(1000):
        of_seed = [random.normal(0, 0.01, n) for n in (16, 8)]
        table, hidden = (
            {"": {arm: 2 + of + random.normal(0, 0.005, len(of)) for arm in ("sync", "delay")}}
            for of in of_seed
        )
        num_refused += not all(c.agrees for c in track.comparisons(table, hidden))
        hidden[""]["delay"] = hidden[""]["delay"] + 0.02
        num_seen += not all(c.agrees for c in track.comparisons(table, hidden))
    assert num_refused <= 20  # 10 on the mean, with a standard deviation of 3
    assert num_seen > 900


def test_longer_delays_are_a_second_table(entry: Path, words: list[str], tmp_path: Path) -> None:
    """It is entered, verified, and on the page; the first table stays."""
    trials = (entry / "trials.csv").read_bytes()
    said = train(entry, tmp_path / "results", [*words, "levels=[1, 2]"])
    assert said.startswith(f"{entry / 'levels.csv'}: ")
    assert said.endswith(" 'levels=[1, 2]'"), "the next command has the words of this one"
    assert (entry / "trials.csv").read_bytes() == trials
    table = load(entry / "levels.csv")
    late = table[table["arm"] != "sync"]
    assert len(late) == 2 * 2 * 3
    with as_in_a_new_process():
        assert f"{entry} stands: " in verified(entry, [*words, "levels=[1, 2]"])
    # The best synchronous entry is that of the first table, here one nat below this one.
    best = track.best_sync([track.read_entered(entry, SAYS)]) - 1
    levels = page._levels([track.read_entered(entry, SAYS, "levels.csv")], best).splitlines()
    cells = [line.strip("| ").split(" | ") for line in levels[2:]]
    assert [row[2] for row in cells] == [
        *("delay of 1", "delay of 1 + EF", "delay of 2", "delay of 2 + EF")
    ]
    for row in cells:
        score, gap = (float(row[place].split()[0].replace("−", "-")) for place in (4, 5))
        assert score == pytest.approx(gap + 1, abs=2e-4)


def scored(*entries: track.Entered) -> pd.DataFrame:
    return track.scores(entries, track.best_sync(entries))


def test_a_score_is_the_loss_beside_the_best_synchronous_entry(entered: Path) -> None:
    """By hand, from the table alone."""
    entry = track.read_entered(entered, SAYS)
    worse = entry.trials.assign(final_val_loss=entry.trials["final_val_loss"] + 1)
    rows = scored(entry, entry._replace(name="worse", trials=worse))
    assert [*rows["entry"]] == ["descent", "descent", "worse", "worse"]
    compared = entry.trials[(entry.trials["seed"] < 500) & (entry.trials["num_updates_asked"] > 6)]
    by_arm = compared.pivot(index="seed", columns="arm", values="final_val_loss")
    for row in rows.itertuples():
        shift = 1.0 if row.entry == "worse" else 0.0
        gap = by_arm[row.arm] - by_arm["sync"]
        assert row.gap == pytest.approx(gap.mean())
        assert row.score == pytest.approx(gap.mean() + shift)
        assert row.n == 3


def trials_of(losses: dict[tuple[str, int], float]) -> pd.DataFrame:
    """A table of two seeds with losses by arm and length; those of the second are 0.1 higher."""
    rows = [
        {
            **{"optimizer": "adamw", "optimizer.lr": 0.01, "status": "completed", "seed": seed},
            **{"arm": arm, "correction": "taylor" if arm.endswith("taylor") else "none"},
            **{"num_updates_asked": length, "final_val_loss": loss + seed / 10},
        }
        for (arm, length), loss in losses.items()
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows)


def test_the_token_tax_is_read_off_synchronous_runs_of_half_the_length() -> None:
    """Halfway between the losses of 800 and 1,600 updates lies a run of 800 √2 of them. A loss
    above that of 800 has a tax above 2."""
    losses = {
        ("sync", 1600): 2.0,
        ("sync", 800): 2.2,
        ("delay", 1600): 2.1,
        ("delay_ef", 1600): 2.3,
    }
    entry = track.Entered("adamw", SAYS, trials_of(losses), {})
    rows = scored(entry).set_index("arm")
    assert rows["tax"]["delay"] == pytest.approx(2**0.5)
    assert rows["gap"]["delay"] == pytest.approx(0.1)
    assert np.isnan(rows["tax"]["delay_ef"])
    assert page._losses({**rows.loc["delay_ef"], "arm": "delay + EF"})[-1] == "> 2"


def test_a_correction_is_scored_by_its_own_arm() -> None:
    """The plain delay is that of its optimizer's entry."""
    losses = {("sync", 1600): 2.0, ("delay", 1600): 2.1, ("delay_taylor", 1600): 2.05}
    says = {**SAYS, "optimizer": None, "correction": "taylor", "predicted": "-"}
    entry = track.Entered("taylor", says, trials_of(losses), {})
    assert [*scored(entry)["arm"]] == ["delay_taylor"]
    assert page._as_predicted(entry)
    assert not page._as_predicted(entry._replace(says={**says, "predicted": "0"}))


def test_the_page_names_what_its_picture_leaves_out(entered: Path, tmp_path: Path) -> None:
    """An entry far above the best would press the others into a corner."""
    shutil.copytree(entered, tmp_path / "entries" / "descent")
    worse = Path(shutil.copytree(entered, tmp_path / "entries" / "worse"))
    trials = pd.read_csv(worse / "trials.csv")
    trials["final_val_loss"] += 2 * page.WORST
    trials.to_csv(worse / "trials.csv", index=False)
    (tmp_path / "README.md").write_text(
        "<!-- table -->\n<!-- end -->\n<!-- levels -->\n<!-- end -->\n"
    )
    page.write(tmp_path / "entries", tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "Not in the picture: worse; their synchronous loss is more than 0.35 above" in text
    picture = (tmp_path / "losses.svg").read_text()
    assert ">descent<" in picture
    assert ">worse<" not in picture


def test_table_picture_and_sortable_page_are_made_from_the_entries(
    entered: Path, tmp_path: Path
) -> None:
    """An entry without a table is named; no number is typed."""
    for name in ("descent", "another"):
        shutil.copytree(entered, tmp_path / "entries" / name)
    (tmp_path / "entries" / "another" / "trials.csv").unlink()
    marks = [f"<!-- {part} -->\n\n<!-- end -->\n" for part in ("table", "levels")]
    (tmp_path / "README.md").write_text("".join(["before\n", *marks, "after\n"]))
    page.write(tmp_path / "entries", tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "1 of 2 entries" in text
    assert "Not yet run: another." in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    sortable = (tmp_path / "index.html").read_text()
    for row in scored(track.read_entered(entered, SAYS)).itertuples():
        for shown in (text, sortable):
            assert f"{row.loss:.4f}" in shown
            assert f"{row.sync:.4f}" in shown
    assert sortable.count("<tr>") == 1 + 2
    assert "loss under delay" in (tmp_path / "losses.svg").read_text()
