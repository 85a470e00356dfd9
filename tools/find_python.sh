#!/bin/sh
# The interpreter for .venv: the distribution's own, if it is Python 3.11 or newer and can make environments.
# It is compiled with profile-guided optimisation; those of pyenv are not, by default, and take about 15 % more
# CPU time. Otherwise python3 of PATH.
for python in /usr/bin/python3 python3; do
    "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
done
echo "$python"
