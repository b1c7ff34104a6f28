"""Do all ranks read the same stream? Compared by a hash of the first batch, before anything is shared out."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import tensorflow as tf

from kerasdist.engine import Group
from kerasdist.engine.meeting import apart, gather_json
from kerasdist.errors import RankMismatchError

_numbers = itertools.count()


class FirstBatchCheck:
    """Compares the first batch of the first epoch across ranks. Attached on every rank or on none.

    Args:
        group: The ranks that share the stream out.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._name = f"first_batch.{next(_numbers)}"
        self._done = False
        self.failure: Exception | None = None

    def attach(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The same dataset, which fails at its first element if the ranks' elements differ."""
        spec = dataset.element_spec

        def pass_on(index: Any, data: Any) -> Any:
            flat = [leaf for leaf in tf.nest.flatten(data, expand_composites=True) if leaf is not None]
            checked = tf.cond(
                tf.equal(index, 0),
                lambda: tf.ensure_shape(tf.py_function(self._compare, flat, tf.int64), []),
                lambda: tf.constant(0, tf.int64),
            )
            with tf.control_dependencies([checked]):
                return tf.nest.map_structure(tf.identity, data, expand_composites=True)

        return dataset.enumerate().map(pass_on) if _is_plain(spec) else dataset

    def _compare(self, *tensors: Any) -> int:
        if self._done:
            return 0
        self._done = True
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(repr((tensor.shape.as_list(), tensor.dtype.name)).encode())
            digest.update(tensor.numpy().tobytes() if tensor.dtype != tf.string else repr(tensor.numpy()).encode())
        with apart():  # in a thread of the data's, while this rank's own waits for the batch
            digests = gather_json(digest.hexdigest()[:12], self._group, self._name)
        if len(set(digests)) > 1:
            table = ", ".join(f"rank {rank}: {one}" for rank, one in enumerate(digests))
            self.failure = RankMismatchError(
                f"rank {self._group.rank}: the ranks read different first batches (hashes {table}), so "
                "sharing them out would lose some samples and repeat others. Shuffle with a seed that all ranks share "
                "(`dataset.shuffle(n, seed=1)`, `keras.utils.set_random_seed(1)`); make a generator anew for each "
                "`fit`, since ranks read ahead by different amounts; or, if each rank reads its own part, say so with "
                "DataParallelStrategy(auto_shard=False)."
            )
            raise self.failure
        return 0


def _is_plain(spec: Any) -> bool:
    """Whether all components are tensors that a Python function can be given."""
    kinds = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec, type(None))
    return all(isinstance(leaf, kinds) or "NoneTensorSpec" in type(leaf).__name__ for leaf in tf.nest.flatten(spec))
