"""File descriptors of this process: raise the limit, count what is open, and give children the old limit.

The soft limit is often 1024, because programs that call select() break on a higher number. Nothing here calls
select(), so the process takes all that the hard limit allows. What it starts gets the limit back that it was
started with itself.
"""

from __future__ import annotations

import logging
import os
import resource
from contextlib import suppress

from volplane.base import metrics

log = logging.getLogger(__name__)

MAX_DESCRIPTORS = (
    1 << 20
)  # a hard limit of a billion, as some container engines set it, is no number to plan with
DIRECTORY = "/proc/self/fd"
INITIAL_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)  # with which this process was started


def raise_limit() -> int:
    """Raise the soft limit to the hard limit; how many descriptors the process may have from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # the kernel's fs.nr_open is lower than the hard limit
            log.warning("the limit of open files stays at %d: %s", soft, error)
    return limit()


def limit() -> int:
    """How many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)


def open_count() -> int:
    """How many descriptors are open."""
    # Since Linux 6.2 the directory's size is the number of its entries, at the cost of one system call.
    try:
        return os.stat(DIRECTORY).st_size or len(os.listdir(DIRECTORY))
    except OSError:  # to list it takes one more, and none is left
        return limit()


def restore_limit(pid: int) -> None:
    """Give a child that was just started the limit that this process was started with."""
    if INITIAL_LIMITS[0] != resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        with suppress(OSError):  # it has ended already
            resource.prlimit(pid, resource.RLIMIT_NOFILE, INITIAL_LIMITS)


metrics.gauge("process_open_fds", "Number of open file descriptors.").set_function(open_count)
metrics.gauge("process_max_fds", "Maximum number of open file descriptors.").set_function(limit)
