"""Do all ranks read the same stream? The first batch is hashed on each rank, and every batch is marked with the hash.

The marks, with the number of samples in the global batch, are compared where the ranks meet anyway: at the start of
each training step, and at the end of an evaluation. So no rank waits for another while it reads.
"""

from __future__ import annotations

import collections
import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.engine import Group
from kerasdist.engine.meeting import apart, gather_json, known_to_all
from kerasdist.errors import RankMismatchError

KEPT = 16
HINT = (
    "Sharing them out would lose some samples and repeat others. Give all ranks the same data, batch size, weights and "
    "steps. Shuffle with a seed that all ranks share (`dataset.shuffle(n, seed=1)`, `keras.utils.set_random_seed(1)`); "
    "make a generator anew for each `fit`, since ranks read ahead by different amounts; or, if each rank reads its own "
    "part, say so with DataParallelStrategy(auto_shard=False)."
)
_descriptions: collections.deque[tuple[int, str]] = collections.deque(maxlen=KEPT)


class FirstBatchCheck:
    """Hashes the first batch of the first epoch. Attached on every rank or on none."""

    def __init__(self) -> None:
        self._done = False
        with tf.init_scope(), tf.device("CPU:0"):  # where data is read
            self._digest = tf.Variable(1, trainable=False, dtype=tf.int64)

    def look(self, index: Any, data: Any) -> Any:
        """Hashes ``data``, inside of a dataset's function, if it is the first: an operation that is done when it is.

        Args:
            index: The number of the batch in its epoch, from 0; int64 scalar.
            data: The batch.
        """
        flat = [leaf for leaf in tf.nest.flatten(data, expand_composites=True) if leaf is not None]
        if not all(isinstance(leaf, tf.Tensor) and leaf.dtype != tf.variant for leaf in flat):
            return tf.no_op()
        hashed = tf.cond(
            tf.equal(index, 0),
            lambda: tf.ensure_shape(tf.py_function(self._hash, flat, tf.int64), []),
            lambda: tf.constant(0, tf.int64),
        )
        return hashed.op

    def mark(self, total: Any) -> Any:
        """The mark of a global batch of so many samples, inside of a dataset's function that comes after the first
        look."""
        return self._digest + 2 * tf.cast(total, tf.int64)

    def _hash(self, *tensors: Any) -> int:
        if self._done:
            return 0
        self._done = True
        digest, parts = hashlib.sha256(), []
        for tensor in tensors:
            parts.append(f"{tensor.dtype.name} {'x'.join(map(str, tensor.shape)) or 'scalar'}")
            digest.update(parts[-1].encode())
            digest.update(tensor.numpy().tobytes() if tensor.dtype != tf.string else repr(tensor.numpy()).encode())
        number = int.from_bytes(digest.digest()[:7], "big") | 1
        _descriptions.append((number, f"a first batch of {', '.join(parts)}, hash {digest.hexdigest()[:12]}"))
        self._digest.assign(number)
        return 0


def same_stream(marks: Any) -> Any:
    """Whether the ranks' marks, an int64 tensor, are those of one stream; true where no stream is shared out.

    The marks of shared streams are odd.
    """
    return tf.reduce_all(tf.equal(marks, marks[0])) | tf.reduce_all(tf.equal(marks % 2, 0))


def different_streams(mark: int, group: Group, what: str) -> RankMismatchError:
    """The error for ranks that read different streams; all of them must call it, and know that they do.

    Args:
        mark: This rank's mark.
        group: The ranks.
        what: What holds ``mark``, for the message: "a global batch", say.
    """
    described = [(number, text) for number, text in _descriptions if 0 <= (mark - number) // 2 < 2**40]
    number, text = described[-1] if described else (1, "data that cannot be compared")
    with apart():
        said = gather_json(f"{what} of {(mark - number) // 2} samples, from {text}", group, "streams")
    table = "".join(f"\n  rank {rank}: {one}" for rank, one in enumerate(said))
    return known_to_all(RankMismatchError(f"rank {group.rank}: the ranks read different data.{table}\n{HINT}"))


def compare_evaluated(mark: int, group: Group, name: str) -> None:
    """Raises on every rank unless all have evaluated, or predicted, the same stream to the same end. Collective.

    Args:
        mark: The stream's digest and twice the samples of all global batches.
        group: The ranks.
        name: Of the collective.

    Raises:
        RankMismatchError: On every rank.
    """
    if not bool(np.asarray(same_stream(tf.constant(gather_json(mark, group, name), tf.int64)))):
        raise different_streams(mark, group, "an evaluation")
