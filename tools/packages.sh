#!/bin/sh
# The Debian packages that features and tests use. Missing ones are installed when this is root on a Debian;
# otherwise they are named, and what needs them says so when it is used.
set -eu
missing=""
need() { # need <command> <package>
    command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || missing="$missing $2"
}
need mkfs.ext4 e2fsprogs
need mkfs.xfs xfsprogs
need mkfs.btrfs btrfs-progs
need losetup util-linux
need kubectl kubernetes-client
need strace strace
need etcd etcd-server
need redis-server redis-server
need ip iproute2
need tinyproxy tinyproxy-bin
need microsocks microsocks
need modprobe kmod
need containerd containerd
need runc runc
need crun crun
need docker-registry docker-registry
need busybox busybox-static
need systemd-analyze systemd
need newuidmap uidmap
need nginx nginx
need iptables iptables
need dig bind9-dnsutils
need jq jq
need chromium chromium
need chromedriver chromium-driver
fc-list 2>/dev/null | grep -q Inter || missing="$missing fonts-inter" # for the screenshots of the live page
fc-list 2>/dev/null | grep -q JetBrains || missing="$missing fonts-jetbrains-mono"
[ -x /usr/lib/cni/bridge ] || missing="$missing containernetworking-plugins"
case $(uname -m) in x86_64) need qemu-system-x86_64 qemu-system-x86 ;; esac # for tools/debian_vm.py
ls /usr/lib/*/libseccomp.so.2 /usr/lib*/libseccomp.so.2 2>/dev/null | grep -q . || missing="$missing libseccomp2"
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # Databases and runtimes are started by those who want one; not by their packages on this machine.
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod 755 /usr/sbin/policy-rc.d
    fi
    install() { apt-get -qq install -y --no-install-recommends "$@" >/dev/null; }
    apt-get -qq update >/dev/null && install $missing || for package in $missing; do
        install "$package" || echo "could not install: $package" >&2 # one that is not to be had keeps out no other
    done
else
    echo "missing packages (install them as root):$missing" >&2
fi
