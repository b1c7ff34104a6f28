"""Step time by compressor over a slow link: two hosts on one machine, as network namespaces. Needs root and iproute2.

    python benchmarks/slow_network.py --rate 100mbit
    python benchmarks/slow_network.py --rate 1gbit

It makes two namespaces joined by a link of the given rate, starts one worker in each, and removes them at the end. Both
workers train an MLP of 8.4 million parameters with every compressor in turn, in blocks of random order, and time each
step. The floor of a way is its local step and the bytes it sends at the link's rate, one after the other; what could
overlap the computation would be hidden behind it.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HOSTS = {"kerasdist-a": "10.77.0.1", "kerasdist-b": "10.77.0.2"}
LINK = "eth0"  # one name on both hosts, as Horovod wants it
WAYS = ("none", "fp16", "bf16", "int8", "TopK(0.01)", "PowerSGD(2)")


# The network --------------------------------------------------------------------------------------------------


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def inside(host: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", host, *command]


@contextlib.contextmanager
def network(rate: str) -> Iterator[None]:
    """Two namespaces and a link between them, removed at the end."""
    first, second = HOSTS
    own_name = os.uname().nodename
    try:
        for host in HOSTS:
            run("ip", "netns", "add", host)
        run("ip", "link", "add", LINK, "netns", first, "type", "veth", "peer", "name", LINK, "netns", second)
        for host, address in HOSTS.items():
            run(*inside(host, "ip", "address", "add", f"{address}/24", "dev", LINK))
            for device in ("lo", LINK):
                run(*inside(host, "ip", "link", "set", device, "up"))
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "400ms"]
            run(*inside(host, "tc", "qdisc", "add", "dev", LINK, *shape))
            # Gloo binds to what the host's own name resolves to, whatever interface was chosen.
            hosts = Path("/etc/netns") / host / "hosts"
            hosts.parent.mkdir(parents=True, exist_ok=True)
            hosts.write_text(f"127.0.0.1 localhost\n{address} {own_name}\n")
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "delete", host], stderr=subprocess.DEVNULL)
            (Path("/etc/netns") / host / "hosts").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                (Path("/etc/netns") / host).rmdir()


def serve() -> None:
    """Horovod's meeting place, until standard input ends. Prints its port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(",".join(f"{one}:1" for one in HOSTS.values())), len(HOSTS)))
    print(port, flush=True)
    sys.stdin.read()
    server.stop()


def worker(rank: int, port: str, arguments: argparse.Namespace, target: str) -> subprocess.Popen:
    """Starts one worker in its namespace."""
    host, address = list(HOSTS.items())[rank]
    size = str(len(HOSTS))
    environment = {
        "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": size, "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": str(rank), "HOROVOD_CROSS_SIZE": size, "HOROVOD_HOSTNAME": address,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": next(iter(HOSTS.values())), "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_GLOO_IFACE": LINK, "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
        # Both hosts are this machine: half of its cores for each.
        "TF_NUM_INTRAOP_THREADS": str(max(1, (os.cpu_count() or 2) // 2)),
        "TF_NUM_INTEROP_THREADS": str(max(1, (os.cpu_count() or 2) // 2) + 1),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }  # fmt: skip
    command = [
        sys.executable, __file__, "--train", target, "--blocks", str(arguments.blocks), "--steps", str(arguments.steps),
    ]  # fmt: skip
    return subprocess.Popen(inside(host, *command), env={**os.environ, **environment})


# The training --------------------------------------------------------------------------------------------------


def compressor(way: str):
    from kerasdist import compression

    return {"TopK(0.01)": compression.TopK(0.01), "PowerSGD(2)": compression.PowerSGD(2)}.get(way, way)


def train(target: str, blocks: int, steps: int) -> None:
    """One worker: trains every way in turn; rank 0 writes step times and bytes."""
    import keras
    import numpy as np
    import step_time
    import tensorflow as tf

    import kerasdist

    class LinkCounter(keras.callbacks.Callback):
        """Notes what the host has sent at each batch's end: headers and all, as its kernel counts."""

        def on_train_begin(self, logs=None):
            self.sent = []

        def on_train_batch_end(self, batch, logs=None):
            rows = Path("/proc/net/dev").read_text().splitlines()
            own = next(row for row in rows if row.strip().startswith(f"{LINK}:"))
            self.sent.append(int(own.split(":")[1].split()[8]))

        def each_step(self, skip: int) -> float:
            return float(np.mean(np.diff(self.sent)[skip:]))

    kerasdist.init()
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 1024), dtype=np.float32), rng.integers(0, step_time.CLASSES, 64)
    skip = 2
    data = tf.data.Dataset.from_tensors((x, y)).cache().repeat(steps + skip + 1)
    trainings, strategies = {}, {}

    def add(way: str, strategy: kerasdist.DataParallelStrategy | None) -> None:
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = step_time.mlp()[0]
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.001, momentum=0.9), loss)

        def fit() -> tuple[list[float], float]:
            clock, link = step_time.Clock(), LinkCounter()
            model.fit(data, verbose=0, callbacks=[clock, link])
            return clock.steps(skip), link.each_step(skip)

        trainings[way], strategies[way] = fit, strategy

    add("local step", None)
    for way in WAYS:
        add(way, kerasdist.DataParallelStrategy(compression=compressor(way), auto_shard=False))
    times: dict[str, list[list[float]]] = {way: [] for way in trainings}
    sent, on_the_link = {}, {}
    order = np.random.default_rng(0)
    for block in range(blocks + 1):
        for way in order.permutation(list(trainings)):
            kerasdist.barrier()
            before = strategies[way].stats() if strategies[way] else None
            taken, through_the_link = trainings[way]()
            if block:  # the first block traces
                times[way].append(taken)
            if before is not None:
                after = strategies[way].stats()
                sent[way] = (after.sent_bytes - before.sent_bytes) / (after.steps - before.steps)
                on_the_link[way] = through_the_link
        if kerasdist.rank() == 0:
            print(f"block {block} of {blocks}", flush=True)
    if kerasdist.rank() == 0:
        Path(target).write_text(json.dumps({"times": times, "sent": sent, "on_the_link": on_the_link}))


# The table --------------------------------------------------------------------------------------------------


def bits_per_second(rate: str) -> float:
    for suffix, factor in (("gbit", 1e9), ("mbit", 1e6)):
        if rate.endswith(suffix):
            return float(rate.removesuffix(suffix)) * factor
    raise SystemExit(f"--rate must be like 100mbit or 1gbit. Received: {rate}")


def rows(found: dict, rate: str) -> list[dict]:
    import numpy as np
    import step_time

    by_block = {way: np.array([np.median(block) for block in blocks]) for way, blocks in found["times"].items()}
    local = float(np.median(by_block["local step"]))
    table = []
    for way, medians in by_block.items():
        faster = by_block["none"] / medians
        low, high = step_time.interval(faster)
        sent = found["sent"].get(way, 0.0)
        floor = local + sent * 8e3 / bits_per_second(rate)
        table.append(
            {
                "rate": rate, "way": way, "median_ms": float(np.median(medians)), "sent_mb": sent / 1e6,
                "link_mb": found["on_the_link"].get(way, 0.0) / 1e6,
                "faster": float(np.median(faster)), "low": low, "high": high, "floor_ms": floor,
            }
        )  # fmt: skip
    return table


def show(table: list[dict], rate: str) -> None:
    from rich.console import Console
    from rich.table import Table

    view = Table(title=f"MLP of 8.4 M parameters, 2 hosts, {rate}")
    columns = ("way", "median ms", "MB sent a step", "on the link", "speed-up", "95 % interval", "floor ms", "of floor")
    for column in columns:
        view.add_column(column, justify="left" if column == "way" else "right")
    for row in table:
        view.add_row(
            row["way"], f"{row['median_ms']:.0f}", f"{row['sent_mb']:.2f}", f"{row['link_mb']:.2f}",
            f"{row['faster']:.2f}", f"{row['low']:.2f} - {row['high']:.2f}", f"{row['floor_ms']:.0f}",
            f"{row['median_ms'] / row['floor_ms']:.2f}",
        )  # fmt: skip
    Console(width=110).print(view)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit", help="of the link, such as 100mbit or 1gbit")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--train", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    if arguments.train:
        return train(arguments.train, arguments.blocks, arguments.steps)
    bits_per_second(arguments.rate)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed then too
    if os.geteuid() != 0:
        parser.error("making network namespaces needs root")
    with network(arguments.rate), tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "found.json"
        meeting = subprocess.Popen(
            inside(next(iter(HOSTS)), sys.executable, __file__, "--serve"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        port = meeting.stdout.readline().strip()
        workers = [worker(rank, port, arguments, str(target)) for rank in range(len(HOSTS))]
        try:
            codes = [one.wait() for one in workers]
        finally:
            for one in workers:
                one.kill()
            meeting.communicate("")
        if any(codes):
            raise SystemExit(f"the workers ended with exit codes {codes}")
        table = rows(json.loads(target.read_text()), arguments.rate)
    show(table, arguments.rate)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
