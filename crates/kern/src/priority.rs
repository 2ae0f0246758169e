//! Being woken on time: real-time scheduling where the system allows it.

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

#[cfg(test)]
mod tests {
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
