//! Being woken on time, or giving way to others.

use std::io;
use std::mem::zeroed;

/// Puts the calling thread ahead of every ordinary thread (`SCHED_FIFO`, priority 1). Needs
/// `CAP_SYS_NICE` in the first user namespace or an `RLIMIT_RTPRIO`; only for threads that sleep most of
/// the time.
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

/// Nice value of threads in the background: a third of the share of ordinary ones.
const BACKGROUND_NICE: libc::c_int = 5;

/// Puts the calling thread behind ordinary ones: it preempts nobody when it wakes (`SCHED_BATCH`), and has a third of their
/// share where they compete.
pub fn background() -> io::Result<()> {
    // SAFETY: an all-zero sched_param is a valid value, and the one this policy takes.
    let parameters: libc::sched_param = unsafe { zeroed() };
    // SAFETY: thread 0 is the caller; the pointer is to `parameters`, which outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: neither call takes pointers; on Linux they are for the calling thread alone.
    let result = unsafe {
        let now = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::setpriority(libc::PRIO_PROCESS, 0, now.max(BACKGROUND_NICE))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn background_is_of_the_calling_thread_alone() {
        // SAFETY: the calls take no pointers; thread 0 is the caller.
        let of_this = || unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
        let before = of_this();
        let then = std::thread::spawn(move || super::background().map(|()| of_this())).join().unwrap();
        assert_eq!(then.unwrap(), (libc::SCHED_BATCH, super::BACKGROUND_NICE.max(before.1)));
        assert_eq!(of_this(), before);
    }

    #[test]
    fn it_is_granted_or_refused_but_never_half() {
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
