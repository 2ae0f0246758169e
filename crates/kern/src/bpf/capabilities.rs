//! Capabilities of the calling thread that concern kernel programs (capabilities(7)).

use std::fs::read_to_string;

/// A capability: its bit, and its name.
type Capability = (u32, &'static str);

const NET_ADMIN: Capability = (12, "CAP_NET_ADMIN");
const SYS_ADMIN: Capability = (21, "CAP_SYS_ADMIN");
const PERFMON: Capability = (38, "CAP_PERFMON");
const BPF: Capability = (39, "CAP_BPF");

/// Required for loading and attaching: maps and programs, programs that read kernel memory, interfaces and sockets.
pub(super) const FOR_BPF: [Capability; 3] = [BPF, PERFMON, NET_ADMIN];

/// Required for reading programs and maps of other processes.
pub(super) const TO_SEE: [Capability; 1] = [SYS_ADMIN];

/// Those of `wanted` that the calling thread lacks; all of them if the kernel does not report its capabilities.
pub(super) fn missing(wanted: &[Capability]) -> Vec<&'static str> {
    let status = read_to_string("/proc/thread-self/status").unwrap_or_default();
    missing_in(wanted, effective(&status).unwrap_or(0))
}

fn missing_in(wanted: &[Capability], effective: u64) -> Vec<&'static str> {
    let has = |bit: u32| effective & 1 << bit != 0;
    // CAP_SYS_ADMIN includes the two that were split off from it.
    let given = |(bit, _): &&Capability| has(*bit) || (*bit > SYS_ADMIN.0 && has(SYS_ADMIN.0));
    wanted.iter().filter(|capability| !given(capability)).map(|(_, name)| *name).collect()
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_checked_instead_of_the_user() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000000c000001000\n"), Some(0xc0_0000_1000));
        assert_eq!(missing_in(&FOR_BPF, 0xc0_0000_1000), [""; 0], "the three, and nothing else");
        assert_eq!(missing_in(&FOR_BPF, 0x20_1000), [""; 0], "CAP_SYS_ADMIN has what it had");
        assert_eq!(missing_in(&FOR_BPF, 0x20_0000), ["CAP_NET_ADMIN"]);
        assert_eq!(missing_in(&FOR_BPF, 0x3000), ["CAP_BPF", "CAP_PERFMON"], "as the units give");
        assert_eq!(missing_in(&FOR_BPF, 0), ["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"]);
        assert_eq!(effective("CapEff:\tx"), None);
    }

    /// Root without capabilities, as in many containers, cannot load anything; another user with them can.
    #[test]
    fn what_the_kernel_says_of_this_thread_is_read() {
        let dropped = std::thread::spawn(|| {
            if !nix::unistd::geteuid().is_root() {
                return None;
            }
            // SAFETY: a plain system call about the calling thread, with two structures of the sizes defined by version 3.
            let done = unsafe {
                let header = [0x2008_0522u32, 0];
                let none = [0u32; 6];
                libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr())
            };
            Some((
                done,
                missing(&FOR_BPF).len(),
                super::super::published().err(),
                super::super::shown().err(),
            ))
        });
        if let Some((done, missing, published, shown)) = dropped.join().unwrap() {
            assert_eq!((done, missing), (0, 3));
            // The error, and not an empty result.
            for seen in [published, shown] {
                let why = seen.map(|error| error.to_string()).unwrap_or_default();
                assert_eq!(why, "what is at work on this machine cannot be seen: CAP_SYS_ADMIN is needed");
            }
        }
    }
}
