"""Why a cluster does not start, in words for whoever started it.

CannotStart
├── Unusable      the data directory
├── RoleFailed    a role's process ends again and again
└── NotReady      it runs, but does not come to serve claims and pods
"""


class CannotStart(Exception):
    """Shown to the user as it is."""


class UnusableDataDirectory(CannotStart):
    """The data directory cannot be written."""


class RoleFailed(CannotStart):
    """A role does not stay up; says what its log ends with."""


class ClusterNotReady(CannotStart):
    """The start did not come to its end in time; names what is missing."""
