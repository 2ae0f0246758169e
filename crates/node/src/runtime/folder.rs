//! Directories of files that the program writes: sockets and state files.

use anyhow::{Context, bail};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The directory of a file.
pub fn of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates the directory of a file, if its parent exists, and logs that. The parent must exist so that a
/// misspelt path does not create a tree of directories.
///
/// # Errors
/// The directory does not exist and cannot be created.
pub fn make_for(file: &Path) -> anyhow::Result<()> {
    let folder = of(file);
    if folder.is_dir() {
        return Ok(());
    }
    match std::fs::DirBuilder::new().mode(0o750).create(folder) {
        Ok(()) => {
            tracing::info!("created the directory {} for {}", folder.display(), file.display());
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!(
                "{}: there is no directory {}: create it, or set another file",
                file.display(),
                folder.display()
            )
        }
        Err(error) => Err(error)
            .with_context(|| format!("{}: creating the directory {}", file.display(), folder.display())),
    }
}

/// Whether `path` is a socket.
pub fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Whether a program listens at the socket `path`. A stale socket of a program that has ended is removed;
/// other files are not touched.
///
/// # Errors
/// The stale socket cannot be removed.
pub fn socket_in_use(path: &Path) -> std::io::Result<bool> {
    let error = match UnixStream::connect(path) {
        Ok(_) => return Ok(true),
        Err(error) => error,
    };
    // Linux also refuses connections to files that are not sockets.
    if error.kind() == ErrorKind::ConnectionRefused && is_socket(path) {
        std::fs::remove_file(path)?;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn one_directory_is_created_but_no_tree() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a/ue.sock");
        make_for(&file).unwrap();
        make_for(&file).unwrap();
        assert_eq!(of(&file).metadata().unwrap().mode() & 0o027, 0, "not for others");
        let far = root.path().join("b/c/ue.sock");
        let error = format!("{:#}", make_for(&far).unwrap_err());
        assert!(error.contains("there is no directory") && error.contains("b/c"), "{error}");
        assert!(!root.path().join("b").exists());
        std::fs::write(root.path().join("f"), "").unwrap();
        assert!(make_for(&root.path().join("f/x")).is_err());
        assert_eq!(of(Path::new("x")), Path::new("."));
        make_for(Path::new("x")).unwrap();
    }

    #[test]
    fn a_stale_socket_is_removed_and_other_files_are_not() {
        let root = tempfile::tempdir().unwrap();
        let (socket, file) = (root.path().join("s"), root.path().join("ue.toml"));
        assert!(!socket_in_use(&socket).unwrap(), "there is none");
        let listener = UnixListener::bind(&socket).unwrap();
        assert!(socket_in_use(&socket).unwrap());
        drop(listener);
        assert!(!socket_in_use(&socket).unwrap() && !socket.exists());
        std::fs::write(&file, "precious").unwrap();
        assert!(!socket_in_use(&file).unwrap());
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    }
}
