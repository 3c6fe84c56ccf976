"""Commands that write, killed at a moment of chance, and what must then be there (scripts/campaign kills)."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path

LLAMA = str(Path(__file__).resolve().parent.parent.parent / "traces/kjv-llama.gguf")


class Wrong(Exception):
    pass


def call(*command, ok=(0,)):
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
    if ran.returncode not in ok:
        raise Wrong(f"{' '.join(command)}: status {ran.returncode}: {ran.stdout.strip()[-300:]}")
    return ran


def kill_after(seconds, command, **how):
    """The command's status and what it had said."""
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how)
    try:
        said = p.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        p.send_signal(signal.SIGKILL)
        said = p.communicate()[0]
    return p.returncode, said


class Killed:
    """A command that is killed: run once to its end, then killed after a part of the time that this took."""

    def __init__(self, work, seeds, firstdiff, host, task):
        self.work, self.seeds, self.firstdiff, self.host = work, seeds, firstdiff, host
        self.task, self.ref = task, work / f"ref-{task}.h5"
        self.set_up()
        began = time.monotonic()
        call(*self.command(self.ref))
        self.time = time.monotonic() - began

    def set_up(self):
        pass

    def round(self, first):
        rng = random.Random(f"{self.task} {first}")
        path = self.work / f"{self.task}-{first}.h5"
        before = b"what lay there before"
        path.unlink(missing_ok=True)
        replaces = rng.random() < 0.5
        if replaces:
            path.write_bytes(before)
        moment = rng.random() * self.time * 1.1
        status, said = kill_after(moment, self.command(path), stdout=subprocess.PIPE)
        was_killed = status == -signal.SIGKILL
        try:
            if not was_killed and status != 0:
                raise Wrong(f"it ended by itself with status {status}")
            if replaces and not path.exists():
                raise Wrong("what lay there before is gone")
            there = path.exists() and path.read_bytes() != before
            self.check(path if there else None, was_killed, said)
        except Wrong as wrong:
            return {"findings": 1, "killed": was_killed, "said": [f"{path}: killed after {moment:.4f} s: {wrong}"]}
        path.unlink(missing_ok=True)
        for part in self.work.glob(f"{path.name}.*.part"):
            part.unlink()
        return {"findings": 0, "killed": was_killed, "said": []}

    def beginning(self, path):
        """The file opens and holds whole steps with the values of the whole run; how many positions."""
        if call(self.firstdiff, "compare", str(self.ref), str(path), ok=(0, 3)).returncode == 0:
            path = self.ref
        return json.loads(call(self.firstdiff, "inspect", str(path), "--json").stdout)["positions"]


class Run(Killed):
    def command(self, path):
        return [self.firstdiff, "run", LLAMA, "--tokens", "1,300,45", "-n", "60", "-q", "-o", str(path)]

    def check(self, path, was_killed, said):
        if path:
            self.beginning(path)
        elif not was_killed:
            raise Wrong("it ended, and left no trace")


class Golden(Killed):
    def set_up(self):
        self.model, self.prompts = str(self.seeds / "small.gguf"), self.work / "many.jsonl"
        self.prompts.write_text("".join(f'{{"tokens": [1, {i}]}}\n' for i in range(2, 14)))

    def command(self, path):
        return [self.firstdiff, "golden", "record", self.model, str(self.prompts), "-n", "4", "-o", str(path)]

    def check(self, path, was_killed, said):
        if path:
            call(self.firstdiff, "golden", "check", self.model, str(path))
        elif not was_killed:
            raise Wrong("it ended, and left no golden")


class Import(Killed):
    def set_up(self):
        self.source = self.work / "source.h5"
        call(self.firstdiff, "run", LLAMA, "--tokens", "1,300,45", "-n", "40", "-q", "-o", str(self.source))

    def command(self, path):
        return [self.firstdiff, "import", str(self.source), "--map", "gguf", "-o", str(path)]

    def check(self, path, was_killed, said):
        if path:
            call(self.firstdiff, "compare", str(self.ref), str(path))
        elif not was_killed:
            raise Wrong("it ended, and left no trace")


class Host(Killed):
    threads, mode, steps, waiting = (
        "1",
        "",
        "150",
        9,
    )  # eight steps that wait for the library's thread, and the one it writes

    def command(self, path):
        return [self.host, str(path), self.steps, self.threads, *self.mode.split()]

    def check(self, path, was_killed, said):
        ended = len(said) - 1  # the step that was begun last had not ended, as far as is known
        there = self.beginning(path) if path else 0
        if there < ended - self.waiting or (not was_killed and there < int(self.steps)):
            raise Wrong(f"{there} steps, but {ended} had ended")


class HostThreads(Host):
    threads = "4"


class HostSynchronous(Host):
    mode, steps, waiting = "synchronous", "60", 0


class HostThreadsSynchronous(HostSynchronous):
    threads = "4"


KILLED = {
    "run": Run,
    "golden": Golden,
    "import": Import,
    "host": Host,
    "host-threads": HostThreads,
    "host-synchronous": HostSynchronous,
    "host-threads-synchronous": HostThreadsSynchronous,
}
