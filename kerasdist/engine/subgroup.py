"""Some ranks of a group, which may be others in each step.

Built on the group's all-to-all, in which a rank sends nothing to those outside of its own part: so who belongs to it
may be a tensor, and needs no set-up. All ranks of the group take part in each collective, each with its own members.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kerasdist.engine.base import Group

_PAIRWISE: dict[str, Callable[[Any, Any], Any]] = {"sum": tf.add, "mean": tf.add, "min": tf.minimum, "max": tf.maximum}


class SubGroup(Group):
    """Some ranks of a group. All ranks of the group must call its methods together, each with its own members.

    Args:
        world: The group that they belong to.
        members: Their ranks, this one's included; a sequence, or an int tensor of known shape (k,). Their order does
            not matter: members are numbered by rank. The parts of all ranks must not overlap, and be of one size.
    """

    def __init__(self, world: Group, members: Any) -> None:
        self._world = world
        self.timeout_s = world.timeout_s
        self.crosses_hosts = world.crosses_hosts
        if tf.is_tensor(members):
            self._members = tf.sort(tf.cast(members, tf.int32))
            self.size = int(members.shape[0])
            self.rank = tf.argmax(tf.cast(self._members == world.rank, tf.int32), output_type=tf.int32)
        else:
            self._members = tf.constant(sorted(members), tf.int32)
            self.size = len(members)
            self.rank = sorted(members).index(world.rank)

    def sent_bytes(self) -> int:
        return self._world.sent_bytes()

    def all_reduce(self, tensor: Any, op: str, name: str) -> Any:
        """As in ``Group``; added up in the order of the members, in the tensor's dtype."""
        tensor = tf.convert_to_tensor(tensor)
        if self.size == 1:
            return tensor
        flat = tf.reshape(tensor, [-1])
        each, rest = tf.size(flat) // self.size, tf.size(flat) % self.size
        splits = each + tf.cast(tf.range(self.size) < rest, tf.int32)
        parts = self.all_to_all(flat, splits, f"{name}.scatter")
        reduced = functools.reduce(_PAIRWISE[op], tf.split(parts, self.size))
        if op == "mean":
            reduced /= self.size
        return tf.reshape(self.all_gather(reduced, f"{name}.gather"), tensor.shape)

    def all_gather(self, tensor: Any, name: str) -> Any:
        tensor = tf.convert_to_tensor(tensor)
        copies = tf.tile(tensor, [self.size] + [1] * (tensor.shape.rank - 1))
        return self.all_to_all(copies, tf.fill([self.size], tf.shape(tensor)[0]), name)

    def all_to_all(self, tensor: Any, splits: Any, name: str) -> Any:
        """As in ``Group``; ``splits[k]`` rows go to the k-th member."""
        with tf.device("CPU:0"):
            counts = tf.cast(tf.convert_to_tensor(splits), tf.int32)
            everywhere = tf.scatter_nd(self._members[:, None], counts, [self._world.size])
        return self._world.all_to_all(tensor, everywhere, name)

    def broadcast(self, tensor: Any, root: int, name: str) -> Any:
        tensor = tf.convert_to_tensor(tensor)
        sent = tf.where(tf.equal(self.rank, root), tf.size(tensor), 0)
        copies = tf.tile(tf.reshape(tensor, [-1])[:sent], [self.size])
        return tf.reshape(self.all_to_all(copies, tf.fill([self.size], sent), name), tensor.shape)

    def exchange(self, row: Any) -> Any:
        return tf.gather(self._world.exchange(row), self._members)
