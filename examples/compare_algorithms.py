"""What does talking less cost? SINGA's MNIST network with every compressor and algorithm, beside plain all-reduce.

    horovodrun -np 4 --gloo python examples/compare_algorithms.py --data mnist.npz --results results.json
    python examples/compare_algorithms.py --results results.json --plot curves.png

The first command trains every way from the same weights on the same order of samples and appends a line to the file
after each; ways that the file holds already are left out, so that it can be stopped and started again. The second
prints the table and draws loss against epochs and accuracy against the bytes that each worker sent.
"""

import argparse
import json
import statistics
from pathlib import Path

import keras
from mnist_cnn import load, make_model

import kerasdist
from kerasdist import algorithms, compression

WAYS = {
    "all_reduce": {},
    "fp16": {"compression": "fp16"},
    "bf16": {"compression": "bf16"},
    "Int8()": {"compression": compression.Int8()},
    "TopK(0.05)": {"compression": compression.TopK()},
    "Threshold(1e-3)": {"compression": compression.Threshold(1e-3)},
    "PowerSGD(2)": {"compression": compression.PowerSGD()},
    "PartialSync()": {"algorithm": algorithms.PartialSync()},
    "LocalSGD()": {"algorithm": algorithms.LocalSGD()},
    "SlowMo()": {"algorithm": algorithms.SlowMo()},
    "Gossip(ring)": {"algorithm": algorithms.Gossip("ring")},
    "Gossip(exponential)": {"algorithm": algorithms.Gossip("exponential")},
    "GroupAllReduce(2)": {"algorithm": algorithms.GroupAllReduce(2)},
    "LocalSGD(), PowerSGD(2)": {"algorithm": algorithms.LocalSGD(), "compression": compression.PowerSGD()},
}


def train(way: str, seed: int, arguments: argparse.Namespace) -> dict:
    """Loss and accuracy on the test images after each epoch, and what a worker sent in a step."""
    keras.utils.set_random_seed(seed)
    strategy = kerasdist.DataParallelStrategy(**WAYS[way])
    x, y, x_test, y_test = load(arguments.data, arguments.samples)
    with strategy.scope():
        model = make_model()
        model.compile(
            keras.optimizers.SGD(0.005, momentum=0.9, weight_decay=1e-5),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(
        x, y, batch_size=arguments.batch_size, epochs=arguments.epochs,
        validation_data=(x_test, y_test), validation_batch_size=500, verbose=0,
    ).history  # fmt: skip
    stats = strategy.stats()
    return {
        "way": way, "seed": seed, "workers": strategy.size, "steps": stats.steps,
        "sent_bytes_per_step": stats.sent_bytes_per_step, "loss": history["loss"],
        "val_loss": history["val_loss"], "val_accuracy": history["val_accuracy"],
    }  # fmt: skip


def train_all(arguments: argparse.Namespace) -> None:
    results = Path(arguments.results)
    lines = results.read_text().splitlines() if results.is_file() else []
    done = {(line["way"], line["seed"]) for line in map(json.loads, lines)}
    kerasdist.init()
    for seed in arguments.seeds:
        for way in arguments.ways:
            if (way, seed) in done:
                continue
            found = train(way, seed, arguments)
            if kerasdist.rank() == 0:
                print(f"{way}, seed {seed}: {[round(value, 4) for value in found['val_accuracy']]}", flush=True)
                with results.open("a") as file:
                    file.write(json.dumps(found) + "\n")
            keras.backend.clear_session()


def by_way(results: str) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for line in Path(results).read_text().splitlines():
        one = json.loads(line)
        found.setdefault(one["way"], []).append(one)
    return found


def show(results: str) -> None:
    from rich.console import Console
    from rich.table import Table

    found = by_way(results)
    table = Table(title="Test accuracy by epoch, mean over the seeds; points: the last epoch less that of all_reduce")
    epochs = min(len(run["val_accuracy"]) for runs in found.values() for run in runs)
    means = {
        way: [statistics.mean(run["val_accuracy"][epoch] for run in runs) for epoch in range(epochs)]
        for way, runs in found.items()
    }
    for column in ("way", "seeds", *map(str, range(1, epochs + 1)), "points", "kB sent a step and worker"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for way, runs in found.items():
        points = f"{100 * (means[way][-1] - means['all_reduce'][-1]):+.2f}" if "all_reduce" in means else "-"
        sent = statistics.mean(run["sent_bytes_per_step"] for run in runs)
        table.add_row(way, str(len(runs)), *[f"{value:.4f}" for value in means[way]], points, f"{sent / 1e3:.1f}")
    Console(width=120).print(table)


def plot(results: str, path: str) -> None:
    """Loss against epochs, and accuracy against bytes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    for number, (way, runs) in enumerate(by_way(results).items()):
        epochs = range(1, min(len(run["loss"]) for run in runs) + 1)
        style = {"label": way, "color": plt.cm.tab20(number % 20), "marker": "o", "markersize": 3, "linewidth": 1}
        left.plot(epochs, [statistics.mean(run["loss"][e - 1] for run in runs) for e in epochs], **style)
        each = statistics.mean(run["sent_bytes_per_step"] * run["steps"] / len(run["loss"]) for run in runs)
        right.plot(
            [each * e / 1e6 for e in epochs],
            [statistics.mean(run["val_accuracy"][e - 1] for run in runs) for e in epochs],
            **style,
        )
    left.set(xlabel="epoch", ylabel="training loss", yscale="log", xticks=epochs)
    right.set(xlabel="MB sent by each worker", ylabel="test accuracy", xscale="log")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right", fontsize=8)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="mnist.npz")
    parser.add_argument("--results", metavar="FILE.json", required=True, help="one JSON line for each training")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of one worker in a step")
    parser.add_argument("--samples", type=int, help="train on the first N samples only")
    parser.add_argument("--plot", metavar="FILE.png", help="draw what the results file holds; nothing is trained")
    arguments = parser.parse_args()
    if not arguments.plot:
        train_all(arguments)
    if arguments.plot or kerasdist.rank() == 0:
        show(arguments.results)
    if arguments.plot:
        plot(arguments.results, arguments.plot)


if __name__ == "__main__":
    main()
