"""Bytes between rank 0 and the others, in pieces that every collective can carry. Nothing received is executed."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from kerasdist.engine import Group
from kerasdist.engine.meeting import gather_json

CHUNK_BYTES = 2**26


def broadcast_bytes(content: bytes, size: int, group: Group, name: str) -> bytes:
    """Rank 0's bytes on every rank. Collective.

    Args:
        content: Rank 0's; other ranks' are not read.
        size: Their number, which all ranks know.
        group: The ranks.
        name: Of the collectives.
    """
    if group.size == 1:
        return content
    stream = np.frombuffer(content, np.uint8) if group.rank == 0 else np.zeros(size, np.uint8)
    starts = range(0, size, CHUNK_BYTES)
    chunks = [group.broadcast(stream[start : start + CHUNK_BYTES], 0, f"{name}.{start}") for start in starts]
    return b"".join(np.asarray(chunk).tobytes() for chunk in chunks)


def gather_bytes(content: bytes, group: Group, name: str) -> list[bytes]:
    """Every rank's bytes in rank order, on rank 0; other ranks get an empty list. Collective."""
    if group.size == 1:
        return [content]
    sizes = gather_json(len(content) if group.rank else 0, group, f"{name}.sizes")
    stream, parts = np.frombuffer(content, np.uint8), [bytearray() for _ in sizes]
    for start in range(0, max(sizes), CHUNK_BYTES):
        own = stream[start : start + CHUNK_BYTES] if group.rank else stream[:0]
        received = _exchange(own, [own.size] + [0] * (group.size - 1), group, f"{name}.{start}")
        for rank, size in enumerate(sizes):
            piece = _piece(size, start) if group.rank == 0 else 0
            parts[rank] += received[:piece].tobytes()
            received = received[piece:]
    return [content, *map(bytes, parts[1:])] if group.rank == 0 else []


def scatter_bytes(contents: list[bytes], group: Group, name: str) -> bytes:
    """On each rank what rank 0 has for it: ``contents`` of rank 0, in rank order. Collective."""
    if group.size == 1:
        return contents[0]
    sizes = gather_json([0, *map(len, contents[1:])] if group.rank == 0 else None, group, f"{name}.sizes")[0]
    own = bytearray()
    for start in range(0, max(sizes), CHUNK_BYTES):
        splits = [_piece(size, start) if group.rank == 0 else 0 for size in sizes]
        pieces = [contents[rank][start : start + size] if size else b"" for rank, size in enumerate(splits)]
        own += _exchange(np.frombuffer(b"".join(pieces), np.uint8), splits, group, f"{name}.{start}").tobytes()
    return contents[0] if group.rank == 0 else bytes(own)


def _piece(size: int, start: int) -> int:
    return min(max(size - start, 0), CHUNK_BYTES)


def _exchange(stream: np.ndarray, splits: list[int], group: Group, name: str) -> np.ndarray:
    return np.asarray(group.all_to_all(tf.constant(stream, tf.uint8), tf.constant(splits, tf.int32), name))
