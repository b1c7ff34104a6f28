"""Where a training stands, and whether it can be continued from there."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kerasdist.checkpoint import files
from kerasdist.checkpoint.state import State
from kerasdist.engine import Group
from kerasdist.engine.meeting import gather_json, known_to_all
from kerasdist.errors import RankMismatchError

MEND = "Continue with what it was written with, or give Checkpoint another folder to begin anew."
# Versions may change between two starts; collectives are numbered by process.
_MAY_CHANGE = ("kerasdist", "keras", "tensorflow")


class Place(NamedTuple):
    """So many epochs are done, and so many batches of the next."""

    epoch: int
    batch: int


@dataclasses.dataclass(frozen=True)
class Found:
    """A checkpoint that is whole.

    Attributes:
        path: Rank 0's file.
        header: What it says of itself.
        arrays: Its tensors, on rank 0.
    """

    path: str
    header: dict[str, Any]
    arrays: dict[str, Any] | None

    def __str__(self) -> str:
        epoch, batch = self.header["place"]
        return f"The checkpoint {self.path} (after {epoch} epochs and {batch} batches)"

    @property
    def why_it_ended(self) -> str:
        """Why nothing comes after it."""
        if self.header["stopped"]:
            return "a callback had set stop_training"
        return f"{self.header['place'][0]} epochs are done"

    def place(self, first: int, epochs: int) -> Place:
        """Where a ``fit`` of these epochs goes on.

        Raises:
            ValueError: It begins after the checkpoint.
        """
        epoch, batch = self.header["place"]
        if epoch < first:
            raise known_to_all(
                ValueError(
                    f"{self} is before the first epoch of this fit. Received: initial_epoch={first}. Give `fit` the "
                    "`initial_epoch` that it was given before."
                )
            )
        return Place(max(epoch, epochs), 0) if self.header["stopped"] or epoch >= epochs else Place(epoch, batch)


def find(folder: Path, group: Group) -> Found | None:
    """The last whole checkpoint of rank 0's folder, of which all ranks learn. Collective.

    Raises:
        OSError: On all ranks: rank 0 cannot make the folder, read it or write there.
    """
    saved, failure = None, None
    if group.rank == 0:
        try:
            files.prepare(folder)
            saved = files.newest(folder, lambda text: warnings.warn(text, stacklevel=4))
        except OSError as error:
            failure = f"{type(error).__name__}: {error}"
    said = [failure, str(saved.path) if saved else None, saved.header if saved else None]
    failure, path, header = gather_json(said if group.rank == 0 else None, group, "checkpoint.find")[0]
    if failure is not None:
        raise known_to_all(OSError(f"rank {group.rank}: rank 0 cannot keep checkpoints in {folder}: {failure}"))
    return None if path is None else Found(path, header, saved.arrays if saved else None)


def same_on_all_ranks(what: str, value: Any, group: Group) -> None:
    """Raises RankMismatchError on all ranks unless they bring the same JSON value. Collective."""
    every = gather_json(value, group, "checkpoint.arguments")
    if any(one != every[0] for one in every):
        table = "".join(f"\n  rank {rank}: {one}" for rank, one in enumerate(every))
        raise known_to_all(RankMismatchError(f"rank {group.rank}: {what} must be the same on all ranks:{table}"))


def note_workers(found: Found, group: Group, global_batch: bool) -> bool:
    """Whether another number of workers wrote it. Rank 0 warns, unless the global batch is the same all the same."""
    workers = found.header["workers"]
    if workers != group.size and not global_batch and group.rank == 0:
        warnings.warn(
            f"{found} was written at a size of {workers} workers, and the size is {group.size} now. Training goes on "
            "with another global batch, so its numbers are not those of an uninterrupted run. docs/elastic.md has the "
            "rule; DataParallelStrategy(global_batch=True) keeps the batch.",
            stacklevel=4,
        )
    return bool(workers != group.size)


def check_seeds(found: Found, seeds: list[int | None], group: Group) -> None:
    """Refuses other seeds than the user had set, which may order the data otherwise.

    Args:
        found: The checkpoint.
        seeds: Those that the user set on each rank, or None.
        group: The ranks.

    Raises:
        ValueError: On all ranks.
    """
    before, drawn = found.header["seeds"]["users"], found.header["seeds"]["drawn"]
    if before == seeds or (found.header["workers"] != group.size and before[0] == seeds[0]):
        return
    if drawn is not None and set(seeds) == {drawn}:
        return  # set by the user now, as the warning of data without a seed says
    expected, received = (one[0] if len(set(one)) == 1 else one for one in (before, seeds))
    raise known_to_all(
        ValueError(
            f"rank {group.rank}: {found} was written in a training with another seed, which may order the data "
            f"otherwise. Expected: {expected}. Received: {received}. Begin the script with "
            f"keras.utils.set_random_seed as it did then, or give Checkpoint another folder."
        )
    )


def check_facts(found: Found, facts: dict[str, Any], group: Group) -> None:
    """Refuses a training that is not the one of the checkpoint.

    Raises:
        ValueError: On all ranks, with the first differences.
    """
    before = found.header["facts"]
    now = json.loads(json.dumps(facts))
    keys = [key for key in {**before, **now} if key not in _MAY_CHANGE and not key.endswith(" collectives")]
    if found.header["workers"] != group.size:
        # The length of an epoch follows from the number of workers, and a schedule may.
        keys = [key for key in keys if key in before and key in now and not key.endswith((" of an epoch", " schedule"))]
    different = [key for key in keys if before.get(key) != now.get(key)]
    told = gather_json(different, group, "checkpoint.facts")
    if not any(told):
        return
    shown = "".join(
        f"\n  {key}:\n    expected: {before.get(key, 'none')}\n    received: {now.get(key, 'none')}"
        for key in (different or next(one for one in told if one))[:3]
    )
    raise known_to_all(ValueError(f"rank {group.rank}: {found} is of another training:{shown}\n{MEND}"))


def replay_doubt(data: Any, began: State, replayed: State, stored: State) -> str | None:
    """Why earlier epochs may not have left the training data as they did; None if they did as far as can be seen.

    Args:
        data: The training data, whose earlier epochs were begun and left.
        began: The state of the generators before that.
        replayed: Their state behind it.
        stored: Their state where the checkpoint stands.
    """
    if not data.changes_at_an_epochs_end:
        return None
    drawn = [name for name in replayed if not np.array_equal(began[name], replayed[name])]
    if all(np.array_equal(replayed[name], stored.get(name, replayed[name])) for name in drawn):
        return None
    return (
        "Checkpoint: `on_epoch_end` of the training data draws random numbers, and something else drew from the same "
        "generator, such as its `__getitem__`. What that drew in earlier epochs is not drawn again, so the data may "
        "come in another order than in an uninterrupted training. Draw in `on_epoch_end` from a generator of its own: "
        "self.rng = np.random.default_rng(seed)."
    )


def doubt(data: Any, seeds: dict[str, Any]) -> str | None:
    """Why the order of the training data may not come a second time, and how to mend it; None if nothing is known."""
    if data.comes_from_a_generator:
        return (
            "Checkpoint: the training data `x` is a Python generator, which cannot be started again at a place. A fit "
            "that continues reads it from its beginning up to the place, and is exact only if it then yields the same."
        )
    if seeds["order"] is not None or seeds["users"][0] is not None:
        return None
    drawn = seeds["drawn"]
    if any(seed in ((0, 0), (drawn, seed[1])) for seed in data.shuffles) or (
        drawn is None and data.is_shuffled_by_keras
    ):
        mend = "keras.utils.set_random_seed(1)" if drawn is None else f"keras.utils.set_random_seed({drawn})"
        return (
            "Checkpoint: the training data is shuffled by a seed that is drawn anew when the script starts again, so a "
            "fit that continues within an epoch would repeat some samples and leave out others. Call "
            f"{mend} at the beginning of the script."
        )
    return None
