"""The exit codes, all of them: of processes in pods, which Jobs act on, and of commands, which
people and CI read.
"""

from collections.abc import Iterable

# Of both: configuration, data or an image is wrong; repeating it repeats it.
EXIT_BAD_INPUT = 2

# Of pods. Not zero after SIGTERM: zero marks a Job's index complete and loses the work.
EXIT_COMPLETE = 0
EXIT_BUG = 70  # EX_SOFTWARE: an exception of the program; retrying repeats it
EXIT_RETRY = 75  # EX_TEMPFAIL: a peer, a GPU or the last save was lost; start me again
EXIT_KILLED = 137  # 128 + SIGKILL: no notice, resume me
EXIT_PREEMPTED = 143  # 128 + SIGTERM: stopped cleanly, resume me

# podFailurePolicy FailJob: retrying these only burns money.
FATAL_EXIT_CODES = (EXIT_BAD_INPUT, EXIT_BUG)


def of_ranks(codes: Iterable[int], *, noticed: bool) -> int:
    """The pod's code from those of its ranks: what must not be retried outweighs all else. -n:
    ended by signal n.
    """
    found = {128 - code if code < 0 else code for code in codes}
    for fatal in FATAL_EXIT_CODES:
        if fatal in found:
            return fatal
    if found == {EXIT_COMPLETE}:
        return EXIT_COMPLETE
    if noticed or EXIT_PREEMPTED in found:
        return EXIT_PREEMPTED
    if EXIT_RETRY in found or not found:
        return EXIT_RETRY
    return max(found)


# Of commands (python -m infra|workloads|monitoring|holdfast); every --help ends with them.
EXIT_DONE = 0
EXIT_FINDINGS = 1
EXIT_NOT_JUDGED = 3
EXIT_STOPPED = 4

EXIT_CODES_HELP = (
    "Exit: 0 done, 1 findings, 2 bad input, 3 could not judge, 4 stopped by a safety rule, 70 a"
    " bug, 75 try again."
)
