"""The two interfaces of the engine: is the job started and who is there (Engine); move this tensor (Group)."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

REDUCTIONS = ("sum", "mean", "min", "max")


class Group(abc.ABC):
    """Ranks that exchange tensors. Every method is collective: each rank of the group must call it.

    Collectives are matched by name, so concurrent ones need different names, and the same name on every rank.
    Inside a ``tf.function`` they become part of the graph.

    Attributes:
        rank: This process's number, 0 to ``size - 1``.
        size: The number of ranks.
        timeout_s: Seconds that a collective may wait for missing ranks.
        crosses_hosts: Whether the ranks of the job are on several hosts, with a network between them.
        waiting: Whether this rank waits for others just now, outside of a graph.
    """

    rank: int
    size: int
    timeout_s: float = 300.0
    crosses_hosts: bool = False
    waiting: bool = False

    def sent_bytes(self) -> int:
        """The bytes that this rank has sent to others within training steps, since the engine started.

        Of a reduction those of a ring, 2 (P-1)/P times the tensor; of a gathering, P-1 times the rank's own; of an
        all-to-all, what goes to others. Envelopes, negotiation and the exchange that begins a step are not counted.
        """
        return 0

    @abc.abstractmethod
    def all_reduce(self, tensor: Any, op: str, name: str) -> Any:
        """Reduces tensors of equal shape and dtype over all ranks.

        Args:
            tensor: The rank's own tensor.
            op: ``"sum"``, ``"mean"``, ``"min"`` or ``"max"``, computed in the tensor's dtype.
            name: Name of the collective.

        Returns:
            The reduced tensor, the same on every rank.
        """

    @abc.abstractmethod
    def all_gather(self, tensor: Any, name: str) -> Any:
        """Concatenates the ranks' tensors along the first axis, whose length may differ by rank."""

    @abc.abstractmethod
    def all_to_all(self, tensor: Any, splits: Any, name: str) -> Any:
        """Sends ``splits[k]`` rows to rank k and returns the rows received, in rank order."""

    @abc.abstractmethod
    def broadcast(self, tensor: Any, root: int, name: str) -> Any:
        """Returns the root's tensor on every rank; shapes and dtypes must agree."""

    @abc.abstractmethod
    def exchange(self, row: Any) -> Any:
        """Every rank's row of three int64: where it is (``engine.meeting``), its samples, and a mark of its data.

        One name wherever it is called, so that it answers the exchange of another rank that is somewhere else.

        Args:
            row: Int64 tensor of shape (3,).

        Returns:
            Int64 tensor of shape (size, 3).
        """

    @contextlib.contextmanager
    def waits(self, where: str) -> Iterator[None]:
        """Inside, the process ends with a message that names ``where`` if it takes longer than the timeout."""
        yield

    def was_cut_off(self, error: Exception) -> bool:
        """Whether a collective failed because another rank ended."""
        return False

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        self.all_reduce(np.zeros(1, np.float32), "sum", "barrier")


class Engine(abc.ABC):
    """Starts and stops communication and says who this process is."""

    name: str

    @abc.abstractmethod
    def start(self) -> None:
        """Starts communication. Every rank must call it, once, before any collective."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends communication. Every rank must call it."""

    @property
    @abc.abstractmethod
    def rank(self) -> int:
        """This process's number, 0 to size - 1."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of processes in the job."""

    @property
    @abc.abstractmethod
    def local_rank(self) -> int:
        """This process's number on its host."""

    @property
    @abc.abstractmethod
    def local_size(self) -> int:
        """The number of processes on this host."""

    @property
    @abc.abstractmethod
    def host(self) -> int:
        """The number of this process's host, where all hosts run equally many processes."""

    @property
    @abc.abstractmethod
    def world(self) -> Group:
        """The group of all ranks."""
