"""From the wish to the working engine: look, choose, check, build or take from the cache, install, verify."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from kerasdist.engine_build import cache, recipe
from kerasdist.engine_build.build import STAGES, build_wheel, pip
from kerasdist.engine_build.installed import InstalledEngine, installed_engine, record_engine
from kerasdist.engine_build.machine import look
from kerasdist.engine_build.preflight import problems
from kerasdist.engine_build.probe import probe
from kerasdist.engine_build.progress import BuildProgress
from kerasdist.errors import BuildError


@dataclass(frozen=True)
class Request:
    """What the user asked for; `None` leaves it to what the machine has."""

    mpi: bool | None = None
    nccl: bool | None = None
    cuda_home: Path | None = None
    nccl_home: Path | None = None
    jobs: int | None = None
    force: bool = False
    verbose: bool = False


def build_engine(request: Request, console: Console, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Makes the environment's engine right: does nothing if it is, else installs it from the cache, else builds it.

    Args:
        request: what was asked for.
        console: where progress goes.
        environ: default `os.environ`.

    Returns:
        What the engine is: the facts if it was right already, else what `probe` says of Horovod.

    Raises:
        BuildError: this machine cannot build it, the build failed, or the result does not load.
    """
    environ = os.environ if environ is None else environ
    store = cache.cache_folder(environ)
    machine = look(environ, [store], request.cuda_home, request.nccl_home)
    options = recipe.choose(machine, request.mpi, request.nccl, request.jobs)
    engine = None if request.force else installed_engine()
    if engine is not None and len(machine.tensorflow) == 1:
        facts = recipe.engine_facts(machine, at_least(options, request, engine))
        if is_right(engine, facts):
            _say(console, f"The engine is installed already: {describe(facts)}.")
            return dict(facts)
    found = problems(machine, options)
    if found:
        raise BuildError("\n".join(found))
    facts = recipe.engine_facts(machine, options)

    _say(console, f"Engine: {describe(facts)}.")
    if options.nccl and not recipe.same_cuda(machine):
        _say(console, f"Note: CUDA here is {machine.cuda}, TensorFlow was built with {machine.tensorflow_cuda}.")
    wheel = None if request.force else cache.find_wheel(store, facts)
    with BuildProgress(console, (0 if wheel else STAGES) + 2, request.verbose) as progress:
        if wheel is None:
            with tempfile.TemporaryDirectory(prefix="kerasdist-", ignore_cleanup_errors=True) as folder:
                log = cache.log_file(store, facts)
                built = build_wheel(machine, options, Path(folder), log, progress, environ)
                wheel = cache.keep_wheel(store, facts, built)
        progress.stage("installing the engine")
        install(wheel, facts)
        progress.stage("loading the engine once")
        built_in = verify(options)
    _say(console, f"The engine is ready: {_built_in(built_in)}.")
    return built_in


def at_least(options: recipe.Options, request: Request, engine: InstalledEngine) -> recipe.Options:
    """What was left open may also be there: an engine that was asked for with NCCL is not replaced by one without."""
    has = engine.facts or {}
    return dataclasses.replace(
        options,
        mpi=options.mpi or (request.mpi is None and bool(has.get("mpi"))),
        nccl=options.nccl or (request.nccl is None and bool(has.get("nccl"))),
    )


def is_right(engine: InstalledEngine, facts: Mapping[str, str]) -> bool:
    """Whether the installed engine is exactly the one that would be built now; without a compiler, any compiler's."""
    running = facts["tensorflow"].split()[-1]
    wanted = dict(facts)
    if not wanted["compiler"] and engine.facts is not None:
        wanted["compiler"] = engine.facts.get("compiler", "")
    return engine.facts == wanted and engine.tensorflow == running and engine.version == wanted["horovod"]


def describe(facts: Mapping[str, str]) -> str:
    """Returns the facts as one phrase."""
    options = ", ".join(["gloo", *(facts[name] for name in ("mpi", "nccl", "cuda") if facts.get(name))])
    where = f"{facts['tensorflow']}, Python {facts['python']}, {facts['compiler'] or 'no compiler'}"
    return f"Horovod {facts['horovod']} for {where}, with {options}"


def install(wheel: Path, facts: Mapping[str, str]) -> None:
    """Installs the wheel and what it needs at run time, and records what it was built for."""
    missing = [name for name in recipe.RUNTIME_PACKAGES if not _is_installed(name)]
    commands = [pip("install", "--no-cache-dir", "--no-deps", "--force-reinstall", str(wheel))]
    if missing:
        commands.append(pip("install", *missing))
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise BuildError(
                f"{done.stderr.strip()}\n\nThe engine was built but pip did not install it. The wheel is kept: {wheel}"
            )
    record_engine(facts)


def verify(options: recipe.Options) -> dict[str, Any]:
    """Loads the engine in a fresh process and returns what it says is built in."""
    answer = probe(parts="tensorflow,horovod")["horovod"]
    if "error" in answer:
        raise BuildError(
            f"The engine is installed but does not load: {answer['error']}\n"
            "Build it anew with `kerasdist build-engine --force`."
        )
    wanted = [name for name, asked in (("gloo", True), ("mpi", options.mpi), ("nccl", options.nccl)) if asked]
    missing = [name for name in wanted if not answer[name]]
    if missing:
        raise BuildError(
            f"The engine loads but has no {' and no '.join(missing)}. Received: {answer}. Please report this."
        )
    return answer


def _built_in(answer: Mapping[str, Any]) -> str:
    names = [name for name in ("gloo", "mpi") if answer[name]] + ([f"nccl {answer['nccl']}"] if answer["nccl"] else [])
    return f"Horovod {answer['version']} with {', '.join(names)}"


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
