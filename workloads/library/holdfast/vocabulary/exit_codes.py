"""Names all exit codes: of processes in pods, for Jobs, and of commands, for people and CI."""

from collections.abc import Iterable

# Both: configuration, data or an image is wrong; a retry fails in the same way.
EXIT_BAD_INPUT = 2

# Pods. Not zero after SIGTERM: zero marks a Job's index complete and loses the work.
EXIT_COMPLETE = 0
EXIT_BUG = 70  # EX_SOFTWARE: an exception of the program; a retry repeats it
EXIT_RETRY = 75  # EX_TEMPFAIL: a peer, a GPU or the last save was lost; start me again
EXIT_KILLED = 137  # 128 + SIGKILL: no notice, resume me
EXIT_PREEMPTED = 143  # 128 + SIGTERM: stopped cleanly, resume me

# podFailurePolicy FailJob: a retry of these only burns money.
FATAL_EXIT_CODES = (EXIT_BAD_INPUT, EXIT_BUG)


def combine_exit_codes(codes: Iterable[int], *, noticed: bool) -> int:
    """Returns the pod's code from those of its ranks; a code -n stands for signal n.

    A code that forbids a retry outweighs all others.
    """
    exit_codes: set[int] = set()
    for code in codes:
        exit_codes.add(128 - code if code < 0 else code)
    for fatal in FATAL_EXIT_CODES:
        if fatal in exit_codes:
            return fatal
    if exit_codes == {EXIT_COMPLETE}:
        return EXIT_COMPLETE
    if noticed or EXIT_PREEMPTED in exit_codes:
        return EXIT_PREEMPTED
    if EXIT_RETRY in exit_codes or not exit_codes:
        return EXIT_RETRY
    return max(exit_codes)


# Commands (python -m infra|workloads|monitoring|holdfast); every --help ends with them.
EXIT_DONE = 0
EXIT_FINDINGS = 1
EXIT_NOT_JUDGED = 3
EXIT_STOPPED = 4

EXIT_CODES_HELP = (
    "Exit: 0 done, 1 findings, 2 bad input, 3 could not judge, 4 stopped by a safety rule, 70 a"
    " bug, 75 try again."
)
