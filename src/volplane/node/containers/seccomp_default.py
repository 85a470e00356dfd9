"""The seccomp profile RuntimeDefault as data: the system calls that a container may make.

All others fail with EPERM. The set is what common container runtimes allow by default: calls on the process,
its files and its sockets; some only for containers with the capability that the call needs anyway. Calls
that reach outside of namespaces (mount, setns, keyctl, bpf, userfaultfd …) are not allowed.
"""

from __future__ import annotations

from collections.abc import Mapping

_FILES = """
_llseek access cachestat chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3
faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown
fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr file_getattr file_setattr flistxattr flock fremovexattr
fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futimesat getcwd getdents
getdents64 getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl lchown
lchown32 lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat lstat64
mkdir mkdirat mknod mknodat name_to_handle_at newfstatat open openat openat2 pipe pipe2 pread64 preadv
preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr removexattrat rename
renameat renameat2 rmdir sendfile sendfile64 setxattr setxattrat splice stat stat64 statfs statfs64 statx
symlink symlinkat sync sync_file_range syncfs tee truncate truncate64 umask unlink unlinkat utime utimensat
utimensat_time64 utimes vmsplice write writev
"""
_MEMORY = """
brk madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mlock mlock2 mlockall mmap mmap2
mprotect mremap mseal msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_mrelease
remap_file_pages
"""
_PROCESSES = """
alarm capget capset execve execveat exit exit_group fork futex futex_requeue futex_time64 futex_wait
futex_waitv futex_wake get_robust_list get_thread_area getcpu getegid getegid32 geteuid geteuid32 getgid
getgid32 getgroups getgroups32 getitimer getpgid getpgrp getpid getppid getpriority getrandom getresgid
getresgid32 getresuid getresuid32 getrlimit getrusage getsid gettid getuid getuid32 ioprio_get ioprio_set
kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lsm_get_self_attr lsm_list_modules
lsm_set_self_attr pause pidfd_open pidfd_send_signal prctl prlimit64 process_vm_readv process_vm_writev
ptrace restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp set_robust_list set_thread_area set_tid_address setfsgid setfsgid32
setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid setregid32
setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setuid setuid32 sgetmask
sigaction sigaltstack signal signalfd signalfd4 sigpending sigprocmask sigreturn sigsuspend ssetmask sysinfo
tgkill times tkill ugetrlimit uname uretprobe vfork wait4 waitid waitpid
"""
_SOCKETS_AND_EVENTS = """
_newselect accept accept4 bind connect epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait
epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 getpeername getsockname getsockopt io_cancel
io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit listen poll ppoll ppoll_time64
pselect6 pselect6_time64 recv recvfrom recvmmsg recvmmsg_time64 recvmsg select send sendmmsg sendmsg sendto
setsockopt shutdown socketcall socketpair
"""
_TIME_AND_IPC = """
adjtimex clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64
clock_nanosleep clock_nanosleep_time64 gettimeofday ipc mq_getsetattr mq_notify mq_open mq_timedreceive
mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink msgctl msgget msgrcv msgsnd nanosleep
semctl semget semop semtimedop semtimedop_time64 shmat shmctl shmdt shmget time timer_create timer_delete
timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime
timerfd_gettime64 timerfd_settime timerfd_settime64
"""
_OF_ARCHITECTURES = """
arch_prctl arm_fadvise64_64 arm_sync_file_range breakpoint cacheflush modify_ldt riscv_flush_icache
riscv_hwprobe s390_pci_mmio_read s390_pci_mmio_write s390_runtime_instr set_tls swapcontext sync_file_range2
"""

_OF_ADMIN = """
bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick listmount lookup_dcookie mount mount_setattr
move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns statmount syslog
umount umount2 unshare
"""

ALWAYS = tuple(
    f"{_FILES} {_MEMORY} {_PROCESSES} {_SOCKETS_AND_EVENTS} {_TIME_AND_IPC} {_OF_ARCHITECTURES}".split()
)
WITH_CAPABILITY: Mapping[str, tuple[str, ...]] = {
    "CAP_DAC_READ_SEARCH": ("open_by_handle_at",),
    "CAP_SYS_ADMIN": tuple(_OF_ADMIN.split()),
    "CAP_SYS_BOOT": ("reboot",),
    "CAP_SYS_CHROOT": ("chroot",),
    "CAP_SYS_MODULE": ("delete_module", "finit_module", "init_module"),
    "CAP_SYS_PACCT": ("acct",),
    "CAP_SYS_PTRACE": ("kcmp", "pidfd_getfd", "process_madvise"),
    "CAP_SYS_RAWIO": ("ioperm", "iopl"),
    "CAP_SYS_TIME": ("clock_settime", "clock_settime64", "settimeofday", "stime"),
    "CAP_SYS_TTY_CONFIG": ("vhangup",),
    "CAP_SYS_NICE": ("get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"),
    "CAP_SYSLOG": ("syslog",),
    "CAP_BPF": ("bpf",),
    "CAP_PERFMON": ("perf_event_open",),
}
# Of personality(2): Linux, 32 bit, both with other words for uname, and the question what it is.
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
NEW_NAMESPACES = 0x7E020000  # CLONE_NEW* of clone(2)
AF_VSOCK = 40  # leads to the machine that runs the virtual machine we may be in
