"""At most six questions for whoever typed `place` and nothing else; the answers are those of the options.

Asked in a terminal only: a script that forgot an option must fail, never wait for a key.
"""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.contract.errors import InputError
from holdfast.place import job
from holdfast.place.prices import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    gpu: str
    gpus: int
    hours: str
    deadline: str
    checkpoint: str
    batch: bool
    region: str

    def command(self) -> str:
        """The same question as one line, for the next time."""
        words = [f"--gpu {self.gpu}", f"--gpus {self.gpus}", f"--hours {self.hours}", f"--deadline {self.deadline}"]
        words.append("--batch" if self.batch else f"--checkpoint {self.checkpoint}")
        words += [f"--region {self.region}"] if self.region else []
        return "holdfast place " + " ".join(words)


def interview(read: Callable[[str], str], write: Callable[[str], None]) -> Answers:
    """Asks until each answer is one; an empty line takes what stands in brackets."""

    def ask(question: str, default: str, check: Callable[[str], object]) -> str:
        while True:
            text = read(f"{question} [{default or 'any'}]: ").strip() or default
            try:
                check(text)
            except InputError as error:
                write(error.lines())
            else:
                return text

    gpu = ask("Which GPU? l4, a100, a100-80, h100, h200, b200", "l4", job.accelerator)
    gpus = int(ask("How many at the same time?", "1", _count))
    hours = ask("Hours of undisturbed work by the clock?", "10h", lambda text: job.clock_hours(text, "", gpus))
    deadline = ask("Done by when, from now? 72h, 3d, none", "none", lambda text: job.duration_h(text, "deadline"))
    kept = ask("What does one checkpoint block? 30s; none: cannot resume; queue: works from a queue", "30s", _kept)
    known = load().regions(job.accelerator(gpu))
    region = ask(f"Region? {', '.join(known)}", "", lambda text: _region(text, known))
    # One question for both: whoever works from a queue has no checkpoint to time.
    batch = kept == "queue"
    return Answers(
        gpu=gpu, gpus=gpus, hours=hours, deadline=deadline, checkpoint="30s" if batch else kept, batch=batch,
        region=region,
    )  # fmt: skip


def _count(text: str) -> None:
    if not (text.isdecimal() and 0 < int(text) <= job.MAX_GPUS):
        raise InputError("GPUs", got=text, allowed=f"1 to {job.MAX_GPUS}", fix="give how many GPUs run at once")


def _kept(text: str) -> None:
    if text != "queue":
        job.duration_h(text, "checkpoint")


def _region(text: str, known: tuple[str, ...]) -> None:
    if text and text not in known:
        raise InputError("no prices there", got=text, allowed=", ".join(known), fix="take one of these, or none")
