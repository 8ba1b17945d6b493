"""Whether a run that is killed at random moments ends as one that is not: equal scores and equal final weights.

    python bench/kills.py                            # 20 kills of driver or engine, two engines: some ten minutes
    python bench/kills.py --kills 3 --generations 3  # as the tests do

One engine trains the embedded model undisturbed; then a fleet trains the same recipe, and again and again SIGKILL
strikes the driver, which is then resumed, or one of the engines, which the fleet replaces. A moment is a random number
of recorded candidates away, and a random part of a second; one in four strikes while the fleet still starts.
After a driver's death no process that belonged to it may be left.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from esctl.runs.directory import RunDir

SMALL = ("prompts=8", "method.population=4", "eval.every=0", "eval.final=null", "sampling.max_tokens=40",
         "checkpoint_every=2", "engine.threads=1")  # fmt: skip
PER_GENERATION = 8  # candidates: two rounds of the population
AHEAD = 4  # recorded candidates between two kills, at most
GONE_SECONDS = 240  # that processes may take to follow a dead driver; some ask only every few seconds


@dataclass(frozen=True)
class Killer:
    """A run of the fleet, and the chance that strikes it."""

    run: Path
    line: list[str]
    rng: random.Random

    def start(self) -> "subprocess.Popen[bytes]":
        """Begin or resume the run, in a session of its own."""
        resume = ["--resume"] if (self.run / "recipe.yaml").exists() else []
        return subprocess.Popen([*self.line, *resume], start_new_session=True, stdout=subprocess.DEVNULL)

    def recorded(self) -> int:
        """Candidates on record."""
        scores = self.run / "scores.jsonl"
        return scores.read_bytes().count(b"\n") if scores.exists() else 0

    def moment(self, process: "subprocess.Popen[bytes]", begun: int) -> None:
        """Wait for the next moment to strike; `begun` is what was on record when the process was started."""
        if self.rng.random() < 0.25 and self.recorded() == begun:
            time.sleep(self.rng.uniform(0, 10))
        else:
            goal = self.recorded() + self.rng.randint(1, AHEAD)
            while process.poll() is None and self.recorded() < goal:
                time.sleep(0.005)
            time.sleep(self.rng.uniform(0, 0.5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--generations", type=int, default=15, help=f"of {PER_GENERATION} candidates each")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        subprocess.run(command(args, whole, 1), check=True, stdout=subprocess.DEVNULL)
        killer = Killer(killed, command(args, killed, args.replicas), random.Random(args.seed))
        struck = train_and_kill(killer, args.kills)
        if struck < args.kills:
            sys.exit(f"the run was over after {struck} kills; raise --generations")
        if outcome(killed) != outcome(whole):
            sys.exit(f"DIFFERENT after {struck} kills with --seed {args.seed}")
        print(f"equal scores and weights after {struck} kills")


def command(args: argparse.Namespace, run: Path, replicas: int) -> list[str]:
    """The command line of one run."""
    sets = [*SMALL, f"generations={args.generations}", f"engine.kind={args.engine}", f"engine.replicas={replicas}"]
    line = [sys.executable, "-m", "esctl", "train", "--recipe", "arithmetic/essam", "--run", str(run)]
    return line + [part for item in sets for part in ("--set", item)]


def train_and_kill(killer: Killer, kills: int) -> int:
    """Train to the end with so many kills on the way; how many found a victim."""
    struck, process, begun = 0, killer.start(), 0
    while struck < kills:
        killer.moment(process, begun)
        if process.poll() is not None:
            return struck
        struck += 1
        engines = engines_of(process.pid)
        if engines and killer.rng.random() < 0.5:
            victim = killer.rng.choice(engines)
            print(f"kill {struck}: engine {victim} at {killer.recorded()} candidates", flush=True)
            os.kill(victim, signal.SIGKILL)
        else:
            print(f"kill {struck}: driver {process.pid} at {killer.recorded()} candidates", flush=True)
            kill_driver(process)
            process, begun = killer.start(), killer.recorded()
    if process.wait() != 0:
        sys.exit(f"the run ended with exit code {process.returncode}")
    return struck


def kill_driver(process: "subprocess.Popen[bytes]") -> None:
    """Kill it, and see to it that everything it has started goes with it."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, left = psutil.wait_procs(family, timeout=GONE_SECONDS)
    if left:
        sys.exit(f"processes outlive their driver: {left}")


def engines_of(driver: int) -> list[int]:
    """The processes that hold a fleet's engines, by the name that Ray gives them."""
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            name = "".join(process.cmdline())  # a process that died a moment ago has none
            found += [process.pid] if name.startswith("ray::Replica") else []
    return found


def outcome(run: Path) -> tuple[object, bytes]:
    """All scores, without seconds, and the final weights."""
    scores = [replace(record, seconds=0.0) for record in RunDir(run).read_scores()]
    return scores, (run / "weights/model.safetensors").read_bytes()


if __name__ == "__main__":
    main()
