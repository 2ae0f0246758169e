//! Private key files: 32 bytes in base64 on one line, readable by the owner only.

use super::load::ConfigError;
use anabranch_atsss::crypto::PrivateKey;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use zeroize::Zeroizing;

/// Reads a private key file created by `anabranch keygen`.
///
/// # Errors
/// The file cannot be read, or has no key.
pub fn read_private_key(path: &Path) -> Result<PrivateKey, ConfigError> {
    let place = path.display();
    let wrong = |why: String| ConfigError::new(format!("private key {place}"), why);
    let text = std::fs::read_to_string(path).map_err(|error| wrong(unreadable(&error, path)))?;
    let text = Zeroizing::new(text);
    let key = text.trim().parse().map_err(|error| {
        wrong(format!(
            "{error}: name the file that `anabranch keygen --out FILE` created, or create a new one"
        ))
    })?;
    let open = std::fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o077 != 0);
    if must_warn(path, open) {
        tracing::warn!("private key {place} can be read by others: chmod 600 {place}");
    }
    Ok(key)
}

/// Warns of a secret file that every user of the machine can read.
pub fn warn_if_open(what: &str, path: &Path) {
    if must_warn(path, is_open(path)) {
        let place = path.display();
        tracing::warn!("{what} {place} can be read by every user of this machine: chmod o= {place}");
    }
}

/// Whether a warning about a readable file is due. Files are read before, at and after a start; the warning
/// is given once, and once more after the file was protected in between.
fn must_warn(path: &Path, open: bool) -> bool {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if !open {
        warned.remove(path);
    }
    open && warned.insert(path.to_owned())
}

/// Whether others can read the file; false if the permissions of a directory on its path prevent it.
fn is_open(path: &Path) -> bool {
    let lets = |path: &Path, bit: u32| std::fs::metadata(path).is_ok_and(|meta| meta.mode() & bit != 0);
    let Ok(path) = path.canonicalize() else { return false };
    lets(&path, 0o004) && path.ancestors().skip(1).all(|folder| lets(folder, 0o001))
}

/// The reason why a file cannot be read, with the remedy.
fn unreadable(error: &std::io::Error, path: &Path) -> String {
    let place = path.display();
    match error.kind() {
        ErrorKind::NotFound => format!("{error}: create one with `anabranch keygen --out {place}`"),
        ErrorKind::PermissionDenied => format!(
            "{error}: it must belong to the user that runs this program; use `chown anabranch-ue {place}` (a UPF's: anabranch-upf)"
        ),
        _ => format!("{error}: name the file that `anabranch keygen --out FILE` created"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Once per file, whoever reads it and however often; again after the file was protected.
    #[test]
    fn a_readable_file_is_reported_once() {
        let [one, two] = ["/nowhere/is-news-1", "/nowhere/is-news-2"].map(Path::new);
        let warned: Vec<bool> =
            [(one, true), (one, true), (two, false), (two, true), (one, true), (one, false), (one, true)]
                .into_iter()
                .map(|(path, open)| must_warn(path, open))
                .collect();
        assert_eq!(warned, [true, false, false, true, false, false, true]);
    }

    #[test]
    fn a_secret_readable_by_everybody_is_reported() {
        use std::os::unix::fs::PermissionsExt;
        // Under a directory that everybody may traverse.
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let file = inner.join("key.pem");
        assert!(!is_open(&file), "not there");
        std::fs::write(&file, "secret").unwrap();
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for (outer, mode, open) in [
            (0o755, 0o600, false),
            (0o755, 0o640, false),
            (0o755, 0o660, false),
            (0o755, 0o644, true),
            (0o711, 0o604, true),
            (0o755, 0o444, true),
            (0o750, 0o644, false),
            (0o700, 0o644, false),
        ] {
            set(folder.path(), outer);
            set(&file, mode);
            assert_eq!(is_open(&file), open, "{outer:o} {mode:o}");
        }
    }

    #[test]
    fn each_fault_of_a_key_file_has_its_own_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ue.key");
        let read = || read_private_key(&file).map(drop).unwrap_err().to_string();
        assert!(read().contains("keygen --out") && read().contains("ue.key`"), "{}", read());
        // keygen never overwrites a file, so it is not the remedy for an existing file.
        std::fs::write(&file, "no key").unwrap();
        assert!(!read().contains("ue.key`") && read().contains("or create a new one"), "{}", read());
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(!read().contains("ue.key`"), "{}", read());
        let denied = unreadable(&ErrorKind::PermissionDenied.into(), &file);
        assert!(denied.contains("chown anabranch-ue"), "{denied}");
    }
}
