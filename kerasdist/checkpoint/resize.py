"""What is a checkpoint of so many workers to another number of them? Each rank's own part is shared out anew.

What all ranks held alike stays as it is. Of the rest:

- sums over the ranks (metrics, accumulated gradients that are addends) keep their sum: each rank gets an equal part;
- other floating values (moving statistics, replicas, momenta, residuals) become their mean;
- seeds of random layers are made from rank 0's again, as at the start of a training;
- generators of Python and NumPy that differed are left as the script has set them;
- whatever else there is stays with its rank, and new ranks get rank 0's.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from kerasdist import keras_hooks

State = dict[str, np.ndarray]


def resized(
    arrays: State, own: Collection[str], before: int, now: int, sums: Collection[str], left_out: tuple[str, ...] = ()
) -> State:
    """A checkpoint's arrays for another number of workers, named as ``gathering`` names them.

    Args:
        arrays: Those of the file: what is common by its name, what differed as ``rank0/name``.
        own: The names of what differed.
        before: The number of workers that wrote it.
        now: The number of workers there are.
        sums: The names of what adds up over the ranks.
        left_out: How names begin whose values no other number of workers can use. Default none.
    """
    kept = {name: [values] * before for name, values in arrays.items() if not name.startswith("rank")}
    for name in own:
        if not name.startswith("random/"):
            kept[name] = [arrays[f"rank{rank}/{name}"] for rank in range(before) if f"rank{rank}/{name}" in arrays]
    result: State = {}
    for name, each in kept.items():
        if name.startswith(left_out):
            continue
        if name.startswith("seed/"):
            parts = [keras_hooks.folded_seed(each[0], rank) for rank in range(now)]
        elif name in sums:
            parts = _parted(each, now)
        elif name not in own:
            result[name] = each[0]
            continue
        elif each[0].dtype.kind == "f" and len({one.shape for one in each}) == 1:
            result[name] = np.asarray(np.mean(each, axis=0, dtype=np.float64), each[0].dtype)
            continue
        else:
            parts = [each[rank] if rank < len(each) else each[0] for rank in range(now)]
        result |= {f"rank{rank}/{name}": part for rank, part in enumerate(parts)}
    return result


def _parted(each: list[np.ndarray], now: int) -> list[np.ndarray]:
    """The sum in as many equal parts; a whole number stays whole, on rank 0."""
    like = each[0].dtype
    total = np.asarray(np.sum(each, axis=0, dtype=np.float64 if like.kind == "f" else like))
    if like.kind == "f":
        return [np.asarray(total / now, like)] * now
    return [total, *[np.zeros_like(total)] * (now - 1)]


def batch_now(batch: int, before: int, now: int, execution: int) -> int:
    """Where a step takes as many batches as there are workers: so many steps have read no more than was read before.

    Args:
        batch: Steps that were done.
        before: The number of workers that did them.
        now: The number of workers there are.
        execution: ``steps_per_execution``.
    """
    done = batch * before // now
    return done - done % execution
