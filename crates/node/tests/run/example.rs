//! The example of a documentation page, executed as written: as root in a sandbox with its own /run and /tmp.
//! The programs are available under /mnt there, because they may have been built under /tmp.

use super::net::ANABRANCH;
use std::path::Path;
use std::process::{Command, Stdio};

/// Time limit of an example, seconds; a longer run waits for an event that does not occur.
const LIMIT_S: &str = "180";

/// The lines of the first block with this fence below "Try it".
pub fn block<'a>(page: &'a str, fence: &str) -> &'a str {
    let (_, rest) = page.split_once("\n## Try it\n").expect("the heading");
    let (_, rest) = rest.split_once(&format!("\n```{fence}\n")).expect("the block");
    rest.split_once("\n```\n").expect("its end").0
}

/// Runs the commands of `page`, then `end`; returns their standard output, and the output with errors.
/// `None`, with the reason printed, where this machine does not permit it. `name` is the name of the page.
pub fn run(page: &str, name: &str, end: &str) -> Option<(String, String)> {
    let programs = Path::new(ANABRANCH).parent().unwrap();
    let private = format!(
        "mount --bind '{}' /mnt && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /tmp && cd /tmp",
        programs.display()
    );
    let sandbox = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c"];
    let tried = Command::new("unshare").args(sandbox).arg(&private).stderr(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "CI must be able to make namespaces");
        eprintln!("skipped: {name} needs root and namespaces");
        return None;
    }
    let script = format!("{private}\nset -e\n{}\n{end}", block(page, "sh"));
    let path = format!("/mnt:{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let limited = ["--kill-after=5", LIMIT_S, "unshare"];
    let output =
        Command::new("timeout").args(limited).args(sandbox).arg(&script).env("PATH", path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let all = format!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{all}");
    assert_ne!(output.status.code(), Some(124), "{name}: not done within {LIMIT_S} s; so far:\n{all}");
    assert!(output.status.success(), "{all}");
    Some((text, all))
}
