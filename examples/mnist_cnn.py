"""SINGA's MNIST network and settings on Keras 3: two 5x5 convolutions, 500 hidden units, SGD.

    horovodrun -np 2 --gloo python examples/mnist_cnn.py --data mnist.npz

Keras' own loader downloads the data set; --data takes the same file (keys x_train, y_train, x_test, y_test).
"""

import argparse
import json
import sys
import time
from pathlib import Path

import keras
import numpy as np

import kerasdist


def load(path: str | None, samples: int | None):
    """The images in [0, 1] and their labels, for training and for testing."""
    if path is None:
        (x, y), (xt, yt) = keras.datasets.mnist.load_data()
    else:
        with np.load(path) as file:
            x, y, xt, yt = (file[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    x, xt = (images[..., None].astype("float32") / 255 for images in (x, xt))
    return x[:samples], y[:samples].astype("int32"), xt, yt.astype("int32")


def make_model() -> keras.Model:
    """SINGA's CNN: conv 20, conv 50, 500 hidden units, 10 classes."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(20, 5, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Conv2D(50, 5, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(500, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="mnist.npz")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of one worker in a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, help="train on the first N samples only")
    parser.add_argument("--compression", choices=["none", "fp16", "bf16"], default="none")
    parser.add_argument("--results", metavar="FILE.json", help="append one JSON line with the accuracies (rank 0)")
    arguments = parser.parse_args()
    if arguments.data and not Path(arguments.data).is_file():
        sys.exit(f"no such file: --data {arguments.data}")

    keras.utils.set_random_seed(arguments.seed)
    strategy = kerasdist.DataParallelStrategy(compression=arguments.compression)
    x, y, x_test, y_test = load(arguments.data, arguments.samples)
    with strategy.scope():
        model = make_model()
        model.compile(
            keras.optimizers.SGD(0.005, momentum=0.9, weight_decay=1e-5),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    start = time.perf_counter()
    history = model.fit(
        x, y, batch_size=arguments.batch_size, epochs=arguments.epochs,
        validation_data=(x_test, y_test), validation_batch_size=500, verbose=2,
    ).history  # fmt: skip
    seconds = time.perf_counter() - start
    accuracies = [round(value, 4) for value in history["val_accuracy"]]
    if strategy.rank == 0:
        print(f"{strategy.size} worker(s), seed {arguments.seed}: test accuracy by epoch {accuracies}, {seconds:.0f} s")
        if arguments.results:
            record = {"workers": strategy.size, "seed": arguments.seed, "compression": arguments.compression}
            with Path(arguments.results).open("a") as file:
                file.write(json.dumps({**record, "accuracy": accuracies, "seconds": round(seconds)}) + "\n")


if __name__ == "__main__":
    main()
