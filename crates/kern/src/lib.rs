//! Kernel interfaces that no maintained library provides safely. This is the only crate with `unsafe` code: each block states why it
//! is sound, and the public interface is safe.
#![deny(missing_docs)]

#[cfg(feature = "bpf")]
pub mod bpf;
pub mod datagram;
pub mod file;
pub mod host;
pub mod interface;
pub mod memory;
pub mod packet;
pub mod priority;
pub mod release;
pub mod reuseport;
pub mod socket;

#[cfg(test)]
mod tests {
    /// Runs `body` in a network namespace of its own, after the shell commands in `setup`. Without permission, the test prints a message
    /// and does nothing; in CI it fails.
    pub(crate) fn in_private_network(setup: &'static str, body: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                // SAFETY: the call takes no pointers and changes the namespace of this thread only.
                if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
                    assert!(
                        std::env::var_os("CI").is_none(),
                        "CI must be able to make a network namespace: run the tests as root"
                    );
                    eprintln!("skipped: needs root to make a network namespace");
                    return;
                }
                let status = std::process::Command::new("sh").args(["-ec", setup]).status().unwrap();
                assert!(status.success(), "{setup}");
                body();
            });
            if let Err(panic) = done.join() {
                std::panic::resume_unwind(panic);
            }
        });
    }
}
