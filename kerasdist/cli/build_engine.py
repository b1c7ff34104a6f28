"""`kerasdist build-engine`: build and install the engine."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from kerasdist.engine_build.pipeline import Request, build_engine
from kerasdist.errors import BuildError

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("build-engine")
@click.option("--mpi/--no-mpi", default=None, help="Build with MPI.  [default: where mpicc is found]")
@click.option("--nccl/--no-nccl", default=None, help="Build with NCCL, for GPUs.  [default: where found]")
@click.option("--cuda-home", type=_FOLDER, help="Folder of CUDA, with bin/nvcc in it.")
@click.option("--nccl-home", type=_FOLDER, help="Folder of NCCL, with include and lib in it.")
@click.option("--jobs", type=click.IntRange(min=1), help="Parallel compilers.  [default: one a core, as memory allows]")
@click.option("--force", is_flag=True, help="Build and install even if the right engine is there.")
@click.option("--verbose", is_flag=True, help="Show the tools' whole output.")
def command(
    mpi: bool | None,
    nccl: bool | None,
    cuda_home: Path | None,
    nccl_home: Path | None,
    jobs: int | None,
    force: bool,
    verbose: bool,
) -> None:
    """Build Horovod for the TensorFlow that is installed here, and install it.

    Takes some minutes the first time; the finished engine is kept, and used again for the same Python, TensorFlow,
    compiler and options.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the compilers and removes what is temporary
    request = Request(mpi, nccl, cuda_home, nccl_home, jobs, force, verbose)
    try:
        build_engine(request, Console())
    except BuildError as error:
        raise click.ClickException(str(error)) from error
