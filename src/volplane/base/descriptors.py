"""File descriptors of this process: raise the limit, count the open ones, give children the initial limit.

The soft limit is often 1024, because programs that call select() break with higher numbers. Nothing here
calls select(), so the process raises the soft limit to the hard limit. Child processes get the limit
that this process was started with.
"""

from __future__ import annotations

import logging
import os
import resource
from contextlib import suppress

from volplane.base import metrics

log = logging.getLogger(__name__)

MAX_DESCRIPTORS = 1 << 20  # some container engines set a hard limit of a billion: too many to plan with
DIRECTORY = "/proc/self/fd"
INITIAL_LIMITS = resource.getrlimit(resource.RLIMIT_NOFILE)  # with which this process was started


def raise_limit() -> int:
    """Raise the soft limit to the hard limit. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # the kernel's fs.nr_open is lower than the hard limit
            log.warning("the limit of open files stays at %d: %s", soft, error)
    return limit()


def limit() -> int:
    """The maximum number of open descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)


def open_count() -> int:
    """The number of open descriptors."""
    # Since Linux 6.2 the size of the directory is the number of its entries: one system call is enough.
    try:
        return os.stat(DIRECTORY).st_size or len(os.listdir(DIRECTORY))
    except OSError:  # listing needs one more descriptor, and none is left
        return limit()


def restore_limit(pid: int) -> None:
    """Give a child process the limit that this process was started with."""
    if INITIAL_LIMITS[0] != resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        with suppress(OSError):  # it has ended already
            resource.prlimit(pid, resource.RLIMIT_NOFILE, INITIAL_LIMITS)


metrics.gauge("process_open_fds", "Number of open file descriptors.").set_function(open_count)
metrics.gauge("process_max_fds", "Maximum number of open file descriptors.").set_function(limit)
