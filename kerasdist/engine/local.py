"""The engine of one process: every collective gives back what it was given."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kerasdist.engine.base import Engine, Group


class LocalGroup(Group):
    """A group of one rank."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: Any, op: str, name: str) -> Any:
        return tf.convert_to_tensor(tensor)

    def all_gather(self, tensor: Any, name: str) -> Any:
        return tf.convert_to_tensor(tensor)

    def all_to_all(self, tensor: Any, splits: Any, name: str) -> Any:
        return tf.convert_to_tensor(tensor)

    def broadcast(self, tensor: Any, root: int, name: str) -> Any:
        return tf.convert_to_tensor(tensor)

    def exchange(self, row: Any) -> Any:
        return tf.convert_to_tensor(row)[None]


class LocalEngine(Engine):
    """One process; nothing to start and nothing to install."""

    name = "local"

    def __init__(self) -> None:
        self._world = LocalGroup()

    def start(self) -> None:
        return None

    def stop(self) -> None:
        return None

    @property
    def rank(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return 1

    @property
    def local_rank(self) -> int:
        return 0

    @property
    def local_size(self) -> int:
        return 1

    @property
    def host(self) -> int:
        return 0

    @property
    def world(self) -> Group:
        return self._world
