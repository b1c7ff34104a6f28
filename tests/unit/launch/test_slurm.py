"""The batch script, and requests that no cluster could meet."""

import subprocess

import pytest
from click.testing import CliRunner

from kerasdist.cli import main
from kerasdist.launch.slurm import Request, batch_script, seconds

LEAST = {"command": ["python", "train.py"], "nodes": 2, "time": "00:30:00"}


def checked(text):
    """The script's lines, if bash can read it."""
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return text.splitlines()


def test_the_least():
    assert checked(batch_script(Request(**LEAST))) == [
        "#!/bin/bash",
        "#SBATCH --job-name=kerasdist",
        "#SBATCH --output=%x-%j.out",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --time=00:30:00",
        "",
        "# One task a worker; the ranks find each other from what srun tells them.",
        "srun --kill-on-bad-exit=1 python train.py",
    ]


def test_everything():
    request = Request(
        **{**LEAST, "command": ["python", "my train.py", "--name", "a'b $HOME"]}, gpus_per_node=4, cpus_per_task=8,
        memory="64G", name="digits", partition="gpu", account="project_1", modules=["cuda/12.4"], requeue=True,
        activate="/opt/my env/bin/activate",
    )  # fmt: skip
    lines = checked(batch_script(request))
    for line in (
        "#SBATCH --ntasks-per-node=4", "#SBATCH --gres=gpu:4", "#SBATCH --cpus-per-task=8", "#SBATCH --mem=64G",
        "#SBATCH --partition=gpu", "#SBATCH --account=project_1", "#SBATCH --requeue", "#SBATCH --open-mode=append",
        "module load cuda/12.4", "source '/opt/my env/bin/activate'", '    scontrol requeue "$SLURM_JOB_ID"',
    ):  # fmt: skip
        assert line in lines
    directives = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert all(line.startswith("#") for line in lines[: directives[-1]]), "sbatch reads none behind a command"
    (srun,) = [line for line in lines if line.startswith("srun")]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {srun.removeprefix('srun ')}"], capture_output=True, text=True,
        env={"SLURM_CPUS_PER_TASK": "8", "PATH": "/usr/bin:/bin", "HOME": "/root"},
    ).stdout.splitlines()  # fmt: skip
    assert words == [
        "--cpus-per-task=8", "python", "my train.py", "--name", "a'b $HOME"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": 0}, "nodes=0"),
        ({"gpus_per_node": -1}, "gpus_per_node=-1"),
        ({"gpus_per_node": 2, "tasks_per_node": 3}, "at most 2 workers"),
        ({"tasks_per_node": 0}, "tasks_per_node=0"),
        ({"cpus_per_task": 0}, "cpus_per_task=0"),
        ({"time": "soon"}, "time='soon'"),
        ({"time": "00:00:00"}, "time='00:00:00'"),
        ({"time": "1-"}, "time='1-'"),
        ({"time": "2:59", "requeue": True}, "at least 3 minutes. Received: time='2:59'"),
        ({"memory": "lots"}, "memory='lots'"),
        ({"name": "a b"}, "'a b'"),
        ({"partition": "gpu\n#SBATCH --account=other"}, "`partition`"),
        ({"modules": ["cuda;reboot"]}, "`module 1`"),
        ({"output": "my file"}, "`output`"),
    ],
    ids=str,
)
def test_what_is_refused(change, said):
    with pytest.raises(ValueError) as error:
        Request(**{**LEAST, **change})
    assert said in str(error.value)


@pytest.mark.parametrize("time", ["30", "30:00", "00:30:00", "1-12", "1-12:30", "1-12:30:00"])
def test_slurms_forms_of_time(time):
    assert f"#SBATCH --time={time}" in batch_script(Request(**{**LEAST, "time": time}))


@pytest.mark.parametrize(
    ("time", "expected"),
    [("30", 1800), ("3:01", 181), ("01:00:05", 3605), ("1-12", 129600), ("1-12:30", 131400), ("1-12:30:05", 131405)],
)
def test_seconds(time, expected):
    assert seconds(time) == expected


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ask = ["slurm", "--nodes", "2", "--gpus-per-node", "4", "--time", "00:30:00", "train.py", "--epochs", "3"]
    done = CliRunner().invoke(main, ask)
    assert done.exit_code == 1 and "no script train.py" in done.output
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(main, ask)
    assert done.exit_code == 0, done.output
    assert "8 workers run" in done.output
    for word in ("sbatch train.sbatch", "squeue --me", "scontrol show job", "scancel JOB"):
        assert word in done.output
    lines = checked((tmp_path / "train.sbatch").read_text())
    assert lines[-1].endswith("train.py --epochs 3")
    done = CliRunner().invoke(main, ask)
    assert done.exit_code == 1 and "is there already" in done.output
    assert CliRunner().invoke(main, ["slurm", "--force", *ask[1:]]).exit_code == 0
    nowhere = CliRunner().invoke(main, ["slurm", "-o", str(tmp_path / "none" / "x"), *ask[1:]])
    assert nowhere.exit_code == 1 and "x cannot be written: No such file or directory." in nowhere.output
    done = CliRunner().invoke(main, ["slurm", "--nodes", "0", "--force", *ask[3:]])
    assert done.exit_code == 1 and "nodes=0" in done.output
