"""What does kerasdist cost beside a hand-written step? Median step times, interleaved in one run.

    horovodrun -np 2 --gloo python benchmarks/step_time.py
    mpirun -np 2 python benchmarks/step_time.py

Six ways to train the same Keras model with the same metrics through the same ``fit``:

- alone: no communication;
- per gradient: an own ``train_step`` with one ``hvd.allreduce`` for each gradient;
- grouped: the same with one ``hvd.grouped_allreduce`` for every 25 MB;
- scope, callback: kerasdist through its two doors, which share out the data, with weights, handshake and metrics;
- callback, own data: each worker has its own, so the number of all samples is not known before the step.

Each block trains every way for some steps, in a new random order; a way's steps are timed one by one. The ratio to the
better hand-written way is taken block by block, so that what disturbs the machine for a while disturbs both. Its
interval is a bootstrap over the blocks (95 %). A block is an epoch, whose first steps are slower where data is shared
out: take 100 steps for the small model (docs/benchmarks.md).
"""

import argparse
import json
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import kerasdist

CLASSES = 10
HAND_WRITTEN = ("per gradient", "grouped")


def mlp() -> tuple[keras.Sequential, int]:
    """33.6 MB of weights in 18 tensors."""
    hidden = [keras.layers.Dense(1024, activation="relu") for _ in range(7)]
    last = [keras.layers.Dense(1024, activation="relu"), keras.layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((1024,)), *hidden, *last]), 64


def cnn() -> tuple[keras.Sequential, int]:
    """4.8 MB of weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(CLASSES),
        ]
    ), 32


def deep() -> tuple[keras.Sequential, int]:
    """60 layers of 64: 1 MB of weights in 122 tensors."""
    hidden = [keras.layers.Dense(64, activation="relu") for _ in range(60)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(CLASSES)]), 64


MODELS = {"mlp": mlp, "cnn": cnn, "deep": deep}


def hand_written(model: keras.Model, grouped: bool) -> keras.Model:
    """The model with an own train step that averages by Horovod alone."""
    import horovod.tensorflow as hvd

    def average(gradients):
        if not grouped:
            return [hvd.allreduce(g, name=f"hand.{model.name}.{i}") for i, g in enumerate(gradients)]
        groups, used = [[]], 0
        for index in reversed(range(len(gradients))):
            nbytes = gradients[index].shape.num_elements() * 4
            if groups[-1] and used + nbytes > 25e6:
                groups, used = [*groups, []], 0
            groups[-1].append(index)
            used += nbytes
        averaged = [None] * len(gradients)
        for number, group in enumerate(groups):
            reduced = hvd.grouped_allreduce([gradients[i] for i in group], name=f"grouped.{model.name}.{number}")
            for index, gradient in zip(group, reduced, strict=True):
                averaged[index] = gradient
        return averaged

    class HandWritten(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(x, y, y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(average(gradients), self.trainable_variables)
            self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
            return self.compute_metrics(x, y, y_pred)

    return HandWritten(model.inputs, model.outputs)


class Clock(keras.callbacks.Callback):
    """Notes the time from one batch's end to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_begin(self, logs=None):
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())

    def steps(self, skip: int) -> list[float]:
        """Step times in ms, without the first ones."""
        return list(np.diff(self.ends)[skip:] * 1e3)


def make_ways(make, compression: str | None) -> dict:
    """For each way a function that trains some steps and returns their times."""
    strategy = kerasdist.DataParallelStrategy(compression=compression)
    ways = {}

    def all_workers(data):
        # Of what is shared out each worker takes one batch in as many as there are workers.
        return data.repeat(kerasdist.size())

    def add(name, model, callbacks=(), prepare=lambda data: data):
        model.compile(
            keras.optimizers.SGD(0.001, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

        def train(data, skip):
            clock = Clock()
            model.fit(prepare(data), epochs=1, verbose=0, callbacks=[*callbacks, clock])
            return clock.steps(skip)

        ways[name] = train

    if compression is None:
        add("alone", make()[0])
        add("per gradient", hand_written(make()[0], grouped=False))
        add("grouped", hand_written(make()[0], grouped=True))
    with strategy.scope():
        model = make()[0]
    suffix = "" if compression is None else f" {compression}"
    add("scope" + suffix, model, prepare=all_workers)
    if compression is None:
        add("callback", make()[0], [kerasdist.DistributedOptimizer()], lambda data: kerasdist.shard(all_workers(data)))
        add("callback, own data", make()[0], [kerasdist.DistributedOptimizer()])
    return ways


def measure(name: str, blocks: int, steps: int, compressions: list[str]) -> dict[str, list[list[float]]]:
    """Step times of every way, block by block."""
    make = MODELS[name]
    model, batch = make()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, *model.input_shape[1:]), dtype=np.float32)
    y = rng.integers(0, CLASSES, batch)
    skip = 3
    data = tf.data.Dataset.from_tensors((x, y)).cache().repeat(steps + skip + 1)
    options = tf.data.Options()
    options.autotune.enabled = False
    data = data.with_options(options)
    ways = make_ways(make, None)
    for compression in compressions:
        ways |= make_ways(make, compression)
    times: dict[str, list[list[float]]] = {way: [] for way in ways}
    order = np.random.default_rng(0)
    for block in range(blocks + 1):
        for way in order.permutation(list(ways)):
            kerasdist.barrier()
            taken = ways[way](data, skip)
            if block:  # the first block traces
                times[way].append(taken)
        if kerasdist.rank() == 0:
            print(f"{name}: block {block} of {blocks}", flush=True)
    return times


def interval(ratios: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the median of block-wise ratios."""
    draws = np.random.default_rng(0).choice(ratios, (2000, ratios.size))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def report(name: str, times: dict[str, list[list[float]]]) -> list[dict]:
    """One row a way: median, spread, and the ratio to the better hand-written way."""
    medians = {way: float(np.median(np.concatenate(blocks))) for way, blocks in times.items()}
    by_block = {way: np.array([np.median(block) for block in blocks]) for way, blocks in times.items()}
    better = min(HAND_WRITTEN, key=medians.get)
    rows = []
    for way, blocks in times.items():
        low, high = interval(by_block[way] / by_block[better])
        p10, p90 = np.percentile(np.concatenate(blocks), [10, 90])
        rows.append(
            {
                "model": name, "way": way, "median_ms": medians[way], "p10_ms": float(p10), "p90_ms": float(p90),
                "ratio": float(np.median(by_block[way] / by_block[better])), "low": low, "high": high, "to": better,
            }
        )  # fmt: skip
    return rows


def show(rows: list[dict]) -> None:
    """The table in the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Step time, {kerasdist.size()} workers; ratio to the better hand-written way")
    for column in ("model", "way", "median ms", "p10 - p90", "ratio", "95 % interval"):
        table.add_column(column, justify="left" if column in ("model", "way") else "right")
    for row in rows:
        mark = " (1)" if row["way"] == row["to"] else ""
        table.add_row(
            row["model"], row["way"] + mark, f"{row['median_ms']:.2f}", f"{row['p10_ms']:.1f} - {row['p90_ms']:.1f}",
            f"{row['ratio']:.3f}", f"{row['low']:.3f} - {row['high']:.3f}",
        )  # fmt: skip
    Console(width=100).print(table)


def plot(rows: list[dict], path: str) -> None:
    """Bars of the ratios with their intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = plt.subplots(1, len(models), figsize=(4 * len(models), 3.2), squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        own = [row for row in rows if row["model"] == model]
        errors = np.abs([[row["ratio"] - row["low"], row["high"] - row["ratio"]] for row in own]).T
        axis.barh([row["way"] for row in own], [row["ratio"] for row in own], xerr=errors, color="#4477aa", capsize=3)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.invert_yaxis()
        axis.set_title(model)
        axis.set_xlabel("step time / better hand-written")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compression", nargs="*", default=["fp16"], choices=["fp16", "bf16"])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE.png")
    arguments = parser.parse_args()
    # kerasdist turns Horovod's fusion off; the hand-written ways keep it, and so kerasdist runs with it here too.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(128 * 2**20))
    kerasdist.init()
    if kerasdist.size() < 2:
        parser.error("start it on at least 2 workers: horovodrun -np 2 --gloo python benchmarks/step_time.py")
    rows = []
    for name in arguments.models:
        rows += report(name, measure(name, arguments.blocks, arguments.steps, arguments.compression))
    if kerasdist.rank() == 0:
        show(rows)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(rows, indent=1))
        if arguments.plot:
            plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
