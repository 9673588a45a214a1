"""What is damaged or out of place in a store, what to do about it, and what can be mended.

Nothing is deleted. A store in a bucket is read in its copy on this machine, and has registers.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from analysis.objects import register
from analysis.objects.bucket import BucketClient, Changed
from analysis.objects.mirror import AT_ONCE, GONE, LISTED, NOT_OURS, TORN, is_known
from analysis.objects.register import File, Register, Seen, names_in, see
from analysis.objects.working import DOCUMENTS
from analysis.table.index import index_path, read_trials
from analysis.table.load import strangers
from analysis.table.records import damaged_records
from sweeps.store.store import Problem
from trainer.base.atomic import write_atomically
from trainer.folder.files import MARKER, Damaged, recorded_id
from trainer.folder.lease import NAME, holder

AGAIN = "it counts as missing; its trial runs again with its sweep"
UNCOUNTED = "it does not count"
MAKES = "makes it again from the objects of its trial and the copy on this machine"


def in_folder(store: Path) -> Iterator[Problem]:
    """Yield the problems of a store in a folder."""
    trials = store / "trials"
    names = sorted(os.listdir(trials)) if trials.is_dir() else []
    there = read_trials(trials, names, index_path(store), whole=False)
    for damage in there.damaged:
        if damage.path.name != MARKER:
            yield Problem(damage, AGAIN)
    for misplaced in there.misplaced:
        yield Problem(misplaced, UNCOUNTED, partial(_rename, misplaced.path, misplaced.trial_id))
    for damage in strangers(trials) if names else ():
        yield Problem(damage, UNCOUNTED)
    for name in there.rows:
        yield from _of_marker(trials / name)
    for damage in damaged_records(store):
        yield Problem(damage, "run its sweep again")


def _of_marker(folder: Path) -> Iterator[Problem]:
    """Yield what is wrong with the marker of the trial that has the name of its folder."""
    try:
        if recorded_id(folder) in (None, folder.name):
            return
        damage = Damaged(folder / MARKER, "names another trial")
    except Damaged as error:
        damage = error
    yield Problem(damage, "repair=true writes it again", partial(_mark, folder))


def _rename(folder: Path, trial_id: str) -> bool:
    """Give a folder the name of its trial, unless that is taken."""
    home = folder.parent / trial_id
    if not trial_id.isalnum() or os.path.lexists(home):
        return False
    folder.rename(home)
    return True


def _mark(folder: Path) -> bool:
    if holder(folder) is not None:
        return False
    write_atomically(folder / MARKER, f"{folder.name}\n".encode())
    return True


def in_bucket(bucket: BucketClient, copy: Path) -> Iterator[Problem]:
    """Yield the problems of registers, and of the objects that they name.

    `copy`: that of the store on this machine.
    """
    keys = [m.key for folder in LISTED for m in bucket.list(folder) if not m.is_folder]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        looks = [*pool.map(partial(_look, bucket), filter(None, map(register.trial_of, keys)))]
    there = {meta.key: meta.size for meta in bucket.list("trials")}
    for key in keys:
        if not is_known(key):
            yield Problem(Damaged(Path(key), NOT_OURS), UNCOUNTED)
    for look in looks:
        if isinstance(look, Damaged):
            yield _of_register(bucket, copy, look)
        elif look is not None:
            yield from _of_objects(bucket, copy, look, there)


def _look(bucket: BucketClient, trial_id: str) -> Seen | Damaged | None:
    try:
        return see(bucket, trial_id)
    except Damaged as error:
        return error


def _of_register(bucket: BucketClient, copy: Path, damage: Damaged) -> Problem:
    if isinstance(damage, register.Copied):
        return Problem(damage, UNCOUNTED)
    return Problem(damage, f"repair=true {MAKES}", partial(_rebuild, bucket, copy, damage.path))


def _rebuild(bucket: BucketClient, copy: Path, place: Path) -> bool:
    """Write a register anew: the newest object of each name, and documents of the copy."""
    key, trial_id = str(place), place.stem
    folder = copy / register.objects(trial_id)
    files: dict[str, File] = {}
    attempts = [0]
    for meta in sorted(bucket.list(register.objects(trial_id))):
        if match := register.OBJECT.fullmatch(meta.key):
            attempts.append(int(match["attempt"]))
            files[match["name"]] = {"key": meta.key, "size": meta.size}
    for name in names_in(folder):
        if name.endswith(DOCUMENTS):
            files[name] = {"text": (folder / name).read_text()}
    attempts += [int(match[1]) for name in files if (match := NAME.fullmatch(name))]
    try:
        made = Register(trial_id, attempt=max(attempts), files=files)
        bucket.replace(key, made.json(), bucket.read(key).version)
    except (Changed, FileNotFoundError):  # somebody was faster
        return False
    return True


def _of_objects(
    bucket: BucketClient, copy: Path, seen: Seen, there: Mapping[str, int]
) -> Iterator[Problem]:
    """Yield the objects that a register names and that are gone or torn, if it still names them.

    `there`: key of an object → its size.
    """
    files = {name: file for name, file in seen.register.files.items() if "key" in file}
    wrong = {name: file for name, file in files.items() if there.get(file["key"]) != file["size"]}
    if not wrong or _look(bucket, seen.register.trial_id) != seen:
        return
    folder = copy / register.objects(seen.register.trial_id)
    for name, file in wrong.items():
        why = TORN if file["key"] in there else GONE
        damage, here = Damaged(Path(file["key"]), why), folder / name
        if here.is_file() and here.stat().st_size == file["size"]:
            mend = partial(_upload, bucket, file["key"], here)
            yield Problem(damage, "repair=true uploads the copy of this machine", mend)
        else:
            yield Problem(damage, "`rerun` makes it again, with force=true if the trial is done")


def _upload(bucket: BucketClient, key: str, here: Path) -> bool:
    with here.open("rb") as file:
        bucket.upload(key, file)
    return True
