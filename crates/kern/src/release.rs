//! The version of the running Linux kernel.

use std::io;

/// Release of the running kernel, such as `6.8.0-51-generic`.
///
/// # Errors
/// /proc is not mounted.
pub fn release() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned())
}

/// Major and minor number of a release; `None` if it does not begin with them. A release candidate (`6.12-rc1`) counts as its
/// version, because the first candidate already contains the new features.
#[must_use]
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_two_numbers() {
        for (release, is) in [
            ("6.8.0-51-generic", Some((6, 8))),
            ("5.15.0", Some((5, 15))),
            ("6.9", Some((6, 9))),
            ("6.12-rc1", Some((6, 12))),
            ("6.12.0-rc1+", Some((6, 12))),
            ("6.18.44-x", Some((6, 18))),
            ("7.0", Some((7, 0))),
            ("", None),
            ("6", None),
            ("next", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(version(release), is, "{release}");
        }
        assert!(version(&release().unwrap()).is_some());
    }
}
