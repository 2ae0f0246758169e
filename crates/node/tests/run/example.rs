//! The example of a documentation page, run as it stands: as root in a sandbox with /run and /tmp of its own. The
//! programs are found by /mnt there, for they may have been built under /tmp.

use super::net::ANABRANCH;
use std::path::Path;
use std::process::{Command, Stdio};

/// An example that has not ended by then waits for something that does not come, in seconds.
const LIMIT_S: &str = "180";

/// The lines of the first block with this fence below "Try it".
pub fn block<'a>(page: &'a str, fence: &str) -> &'a str {
    let (_, rest) = page.split_once("\n## Try it\n").expect("the heading");
    let (_, rest) = rest.split_once(&format!("\n```{fence}\n")).expect("the block");
    rest.split_once("\n```\n").expect("its end").0
}

/// Runs the commands of `page`, then `end`; what they print, and that with errors. `None`, said why, where this
/// machine cannot. `name` is the page's.
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
