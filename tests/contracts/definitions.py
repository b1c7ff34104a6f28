"""What each compressor is by its definition, in NumPy and float64: what the tests hold the code against.

A simulation has one method, ``step(values)``: of all ranks' values, shape (ranks, n), to their mean. It keeps what it
remembers.
"""

from __future__ import annotations

import numpy as np


class Exact:
    """The plain mean."""

    def step(self, values):
        return values.mean(axis=0)


class Blocks:
    """Block-wise 8 bits: rounded to 255 levels by each rank, averaged, rounded again if there are more than two."""

    def __init__(self, block):
        self.block = block

    def rounded(self, flat):
        out = np.empty_like(flat)
        for start in range(0, len(flat), self.block):
            piece = flat[start : start + self.block]
            level = np.abs(piece).max() / 127
            out[start : start + self.block] = np.rint(piece / level) * level if level else 0.0
        return out

    def level(self, flat):
        """The distance of levels at each value."""
        pieces = [flat[start : start + self.block] for start in range(0, len(flat), self.block)]
        return np.concatenate([np.full(len(piece), np.abs(piece).max() / 127) for piece in pieces])

    def step(self, values):
        mean = np.mean([self.rounded(rank) for rank in values], axis=0)
        return mean if len(values) == 2 else self.rounded(mean)


class Largest:
    """Top-k: each rank sends its k entries of largest magnitude, and keeps the others if it has a residual."""

    def __init__(self, ratio, residual=True):
        self.ratio, self.residual, self.kept = ratio, residual, 0.0

    def chosen(self, flat):
        count = max(1, round(self.ratio * len(flat)))
        mask = np.zeros(len(flat), bool)
        mask[np.argsort(-np.abs(flat))[:count]] = True
        return mask

    def step(self, values):
        whole = values + self.kept
        sent = np.stack([np.where(self.chosen(rank), rank, 0.0) for rank in whole])
        if self.residual:
            self.kept = whole - sent
        return sent.mean(axis=0)


class AtLeast(Largest):
    """Threshold: each rank sends the entries whose magnitude is at least a value."""

    def __init__(self, value, residual=True):
        self.value, self.residual, self.kept = value, residual, 0.0

    def chosen(self, flat):
        return np.abs(flat) >= self.value


class LowRank:
    """PowerSGD, Algorithms 1 and 2 of Vogels et al., on parts of the flat values.

    Args:
        parts: (start, rows, columns) of each matrix; all other values are averaged exactly.
        q: The first Q of each.
        residual: Whether errors are fed back.
    """

    def __init__(self, parts, q, residual=True):
        self.parts, self.q, self.residual = parts, list(q), residual
        self.kept = {}

    def step(self, values):
        mean = values.mean(axis=0)
        for number, (start, rows, columns) in enumerate(self.parts):
            where = slice(start, start + rows * columns)
            matrices = values[:, where].reshape(-1, rows, columns) + self.kept.get(number, 0.0)
            p = np.mean([matrix @ self.q[number] for matrix in matrices], axis=0)
            for column in range(p.shape[1]):  # Gram-Schmidt
                for before in range(column):
                    p[:, column] -= p[:, before] @ p[:, column] * p[:, before]
                p[:, column] /= np.linalg.norm(p[:, column])
            own_q = [matrix.T @ p for matrix in matrices]
            self.q[number] = np.mean(own_q, axis=0)
            if self.residual:
                self.kept[number] = np.stack([m - p @ q.T for m, q in zip(matrices, own_q, strict=True)])
            mean[where] = (p @ self.q[number].T).ravel()
        return mean
