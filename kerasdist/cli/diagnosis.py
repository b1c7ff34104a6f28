"""What does the evidence mean? Each finding is good, missing, wrong or a note, with the mend; pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kerasdist.cli.evidence import Evidence
from kerasdist.engine_build.preflight import NEWEST_PYTHON, OLDEST_PYTHON

OLDEST_KERAS = (3, 11)
_LITTLE_MEMORY_MB = 2000


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table.

    Attributes:
        name: what was looked at.
        state: "good"; "note" does not matter on one host; "missing" and "wrong" need the mend.
        value: what was found.
        mend: what to do; "" where nothing is to do.
        blocks: whether 2 workers cannot train as long as this is so.
    """

    name: str
    state: Literal["good", "note", "missing", "wrong"]
    value: str
    mend: str = ""
    blocks: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return asdict(self)


def diagnose(evidence: Evidence) -> list[Finding]:
    """Returns the findings, in the order in which things are built on each other."""
    checks = (_python, _tensorflow, _keras, _horovod, _gpus, _mpi, _launcher, _network, _machine, _trial)
    return [finding for check in checks for finding in check(evidence)]


def can_train(findings: list[Finding]) -> bool:
    """Whether training on 2 workers could start."""
    return not any(finding.blocks for finding in findings)


def _python(evidence: Evidence) -> Iterator[Finding]:
    version = ".".join(map(str, evidence.python))
    if OLDEST_PYTHON <= evidence.python[:2] <= NEWEST_PYTHON:
        yield Finding("Python", "good", version)
    else:
        yield Finding("Python", "wrong", version, "use Python 3.11 to 3.13", blocks=True)


def _tensorflow(evidence: Evidence) -> Iterator[Finding]:
    answer = evidence.answers.get("tensorflow", {})
    names = ", ".join(f"{name} {version}" for name, version in evidence.packages)
    if not evidence.packages and "error" in answer:
        yield Finding("TensorFlow", "missing", "not installed", "pip install 'kerasdist[cpu]' (or [gpu])", blocks=True)
    elif len(evidence.packages) > 1:
        every = " ".join(name for name, _ in evidence.packages)
        yield Finding(
            "TensorFlow", "wrong", f"{names}: installed twice", f"pip uninstall {every}; install one", blocks=True
        )
    elif "error" in answer:
        yield Finding("TensorFlow", "wrong", f"{names}: {answer['error']}", "install TensorFlow again", blocks=True)
    else:
        yield Finding("TensorFlow", "good", names)


def _keras(evidence: Evidence) -> Iterator[Finding]:
    answer = evidence.answers.get("keras", {})
    if "error" in answer:
        state: Literal["missing", "wrong"] = "missing" if "No module named 'keras'" in answer["error"] else "wrong"
        yield Finding("Keras", state, answer["error"], "pip install 'keras>=3.11'", blocks=True)
    elif _numbers(answer["version"]) < OLDEST_KERAS:
        yield Finding("Keras", "wrong", answer["version"], "pip install 'keras>=3.11'", blocks=True)
    elif answer["backend"] != "tensorflow":
        value = f"{answer['version']} on the {answer['backend']} backend"
        yield Finding("Keras", "wrong", value, "set KERAS_BACKEND=tensorflow", blocks=True)
    else:
        yield Finding("Keras", "good", f"{answer['version']} on TensorFlow")


def _horovod(evidence: Evidence) -> Iterator[Finding]:
    engine, answer = evidence.engine, evidence.answers.get("horovod", {})
    running = evidence.answers.get("tensorflow", {}).get("version") or next((v for _, v in evidence.packages), "")
    build, rebuild = "kerasdist build-engine", "kerasdist build-engine --force"
    if engine is None:
        yield Finding("Horovod", "missing", "not installed", build, blocks=True)
    elif not engine.tensorflow:
        yield Finding("Horovod", "wrong", f"{engine.version} without the TensorFlow extension", rebuild, blocks=True)
    elif running and engine.tensorflow != running:
        value = f"{engine.version} built for TensorFlow {engine.tensorflow}, {running} runs"
        yield Finding("Horovod", "wrong", value, build, blocks=True)
    elif "error" in answer:
        yield Finding("Horovod", "wrong", f"{engine.version}: {answer['error']}", rebuild, blocks=True)
    else:
        yield Finding("Horovod", "good", f"{engine.version} built for TensorFlow {engine.tensorflow}")
        yield from _built_in(evidence, answer)


def _built_in(evidence: Evidence, answer: Mapping[str, Any]) -> Iterator[Finding]:
    controllers = [name for name, built in (("Gloo", answer["gloo"]), ("MPI", answer["mpi"])) if built]
    if controllers:
        yield Finding("Controllers", "good", ", ".join(controllers))
    else:
        yield Finding("Controllers", "missing", "neither Gloo nor MPI", "kerasdist build-engine --force", blocks=True)
    nccl = [f"NCCL {answer['nccl']}"] if answer["nccl"] else []
    operations = ", ".join([*controllers, *nccl])
    if evidence.answers["tensorflow"].get("gpus") and not nccl:
        yield Finding(
            "Tensor operations",
            "missing",
            f"{operations}; no NCCL, so GPUs go through host memory",
            "kerasdist build-engine --nccl",
        )
    else:
        yield Finding("Tensor operations", "good", operations)
    if evidence.horovodrun or (answer["mpi"] and evidence.mpirun):
        yield Finding("horovodrun", "good", "found")
    else:
        yield Finding("horovodrun", "missing", "not found", "kerasdist build-engine --force", blocks=True)


def _gpus(evidence: Evidence) -> Iterator[Finding]:
    answer = evidence.answers.get("tensorflow", {})
    gpus = answer.get("gpus") or []
    without = "none" if answer.get("cuda") else "none (this TensorFlow is built without CUDA)"
    yield Finding("GPUs", "good" if gpus else "note", f"{len(gpus)}: {', '.join(gpus)}" if gpus else without)


def _mpi(evidence: Evidence) -> Iterator[Finding]:
    built = evidence.answers.get("horovod", {}).get("mpi")
    if evidence.mpirun and (built or built is None):
        yield Finding("MPI", "good", f"{evidence.mpi or 'found'} ({evidence.mpirun})")
    elif evidence.mpirun:
        yield Finding("MPI", "note", f"{evidence.mpi or 'found'}, not built in", "kerasdist build-engine --mpi")
    elif built:
        yield Finding(
            "MPI", "missing", "built in, but mpirun is not found", "apt-get install openmpi-bin, or horovodrun --gloo"
        )
    else:
        yield Finding("MPI", "note", "not installed, not needed: Gloo does without")


def _launcher(evidence: Evidence) -> Iterator[Finding]:
    text, sound = evidence.launcher
    yield Finding("Launcher", "good", text) if sound else Finding("Launcher", "wrong", text, "unset it", blocks=True)


def _network(evidence: Evidence) -> Iterator[Finding]:
    name, address, routable = evidence.host_name
    if not address:
        mend = f"Gloo needs an address: put `127.0.0.1 {name}` into /etc/hosts"
        yield Finding("Network", "wrong", f"host name {name} resolves to nothing", mend, blocks=True)
    elif not routable:
        yield Finding("Network", "note", "no interface with a route", "on several hosts: one of the same name on each")
    elif address.startswith("127."):
        value = f"host name {name} resolves to {address}"
        yield Finding("Network", "note", value, "on several hosts: give it a routable address in /etc/hosts")
    else:
        yield Finding("Network", "good", f"{name} is {address}")


def _machine(evidence: Evidence) -> Iterator[Finding]:
    yield Finding("Cores", "good" if evidence.cores > 1 else "note", str(evidence.cores))
    memory = f"{evidence.memory_mb / 1024:.1f} GB free"
    if 0 < evidence.memory_mb < _LITTLE_MEMORY_MB:
        yield Finding("Memory", "wrong", memory, "two workers need about 1 GB each before the model: free some")
    else:
        yield Finding("Memory", "good", memory)


def _trial(evidence: Evidence) -> Iterator[Finding]:
    if evidence.trial is None:
        return
    if evidence.trial.get("mean") == 0.5:
        yield Finding("2 processes", "good", f"mean of their ranks: 0.5 ({evidence.trial['seconds']:.0f} s)")
    else:
        value = evidence.trial.get("error") or f"mean of their ranks: {evidence.trial.get('mean')}, expected 0.5"
        yield Finding(
            "2 processes", "wrong", value, "mend the lines above; then kerasdist build-engine --force", blocks=True
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
