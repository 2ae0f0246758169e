//! Scheduling of threads: prompt wake-ups, or lowest priority.

use std::io;
use std::mem::zeroed;

/// Gives the calling thread precedence over every ordinary thread (`SCHED_FIFO`, priority 1). Requires `CAP_SYS_NICE` in the initial
/// user namespace or an `RLIMIT_RTPRIO`; only for threads that sleep most of the time.
pub fn real_time() -> io::Result<()> {
    // SAFETY: an all-zero sched_param is a valid value.
    let mut parameters: libc::sched_param = unsafe { zeroed() };
    parameters.sched_priority = 1;
    // SAFETY: thread 0 is the caller; the pointer is to `parameters`, which outlives the call.
    let result = unsafe {
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const parameters)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets the calling thread preempt others of its class when it wakes, by requesting a short slice (0.1 ms; Linux 6.12 and later, no
/// effect before). Its share does not change, and a scheduling policy that was set explicitly is kept. For threads that sleep most of
/// the time.
pub fn short_slice() -> io::Result<()> {
    // SAFETY: the call takes no pointers; thread 0 is the caller.
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return Ok(());
    }
    // SAFETY: an all-zero sched_attr is a valid value.
    let mut attributes: libc::sched_attr = unsafe { zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    attributes.sched_policy = libc::SCHED_OTHER as u32;
    attributes.sched_runtime = SHORT_SLICE_NS;
    // SAFETY: the call takes no pointers; thread 0 is the caller.
    attributes.sched_nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // SAFETY: thread 0 is the caller; the pointer is to `attributes`, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The shortest slice accepted by Linux.
const SHORT_SLICE_NS: u64 = 100_000;

/// Runs the calling thread only when no ordinary thread needs the processor (`SCHED_IDLE`); any ordinary thread preempts it at once.
/// It may not run for a long time; an unprivileged thread cannot revert this.
pub fn idle() -> io::Result<()> {
    // SAFETY: an all-zero sched_param is valid, and the required value for this policy.
    let parameters: libc::sched_param = unsafe { zeroed() };
    // SAFETY: thread 0 is the caller; the pointer is to `parameters`, which outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    /// The calling thread's policy.
    fn policy() -> i32 {
        // SAFETY: the call takes no pointers; thread 0 is the caller.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn the_idle_policy_applies_to_one_thread_only() {
        let before = policy();
        let then = std::thread::spawn(|| super::idle().map(|()| policy())).join().unwrap();
        assert_eq!(then.unwrap(), libc::SCHED_IDLE);
        assert_eq!(policy(), before);
    }

    #[test]
    fn a_short_slice_is_for_ordinary_threads_and_changes_nothing_else() {
        // SAFETY: the calls take no pointers; thread 0 is the caller.
        let of_this = || (policy(), unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) });
        std::thread::spawn(move || {
            let before = of_this();
            super::short_slice().unwrap();
            assert_eq!(of_this(), before);
            super::idle().unwrap();
            super::short_slice().unwrap();
            assert_eq!(policy(), libc::SCHED_IDLE, "another policy was replaced");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn requests_are_granted_or_refused_as_a_whole() {
        std::thread::spawn(|| {
            let granted = super::real_time().is_ok();
            // SAFETY: the call takes no pointers; thread 0 is the caller.
            let policy = unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK;
            assert_eq!(granted, policy == libc::SCHED_FIFO);
        })
        .join()
        .unwrap();
    }
}
