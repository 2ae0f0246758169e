//! Folders of files that the program writes: sockets, state.

use anyhow::{Context, bail};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The folder that a file is in.
pub fn of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Has the folder of a file there. It is made, and that is logged, if the one around it is there: a path with a mistake in
/// it does not become a tree of folders.
///
/// # Errors
/// It is not there and cannot be made.
pub fn make_for(file: &Path) -> anyhow::Result<()> {
    let folder = of(file);
    if folder.is_dir() {
        return Ok(());
    }
    match std::fs::DirBuilder::new().mode(0o750).create(folder) {
        Ok(()) => {
            tracing::info!("made the folder {} for {}", folder.display(), file.display());
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!(
                "{}: there is no folder {}: make it, or name another file",
                file.display(),
                folder.display()
            )
        }
        Err(error) => {
            Err(error).with_context(|| format!("{}: making the folder {}", file.display(), folder.display()))
        }
    }
}

/// Whether there is a socket at `path`.
pub fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

/// Whether a program listens at the socket `path`. One that was left by a program that is gone is taken away; what is no
/// socket stays.
///
/// # Errors
/// It cannot be taken away.
pub fn socket_in_use(path: &Path) -> std::io::Result<bool> {
    let error = match UnixStream::connect(path) {
        Ok(_) => return Ok(true),
        Err(error) => error,
    };
    // Linux refuses a connection to any file that is no socket, too.
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
    fn one_folder_is_made_and_a_tree_is_not() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a/ue.sock");
        make_for(&file).unwrap();
        make_for(&file).unwrap();
        assert_eq!(of(&file).metadata().unwrap().mode() & 0o027, 0, "not for others");
        let far = root.path().join("b/c/ue.sock");
        let error = format!("{:#}", make_for(&far).unwrap_err());
        assert!(error.contains("there is no folder") && error.contains("b/c"), "{error}");
        assert!(!root.path().join("b").exists());
        std::fs::write(root.path().join("f"), "").unwrap();
        assert!(make_for(&root.path().join("f/x")).is_err());
        assert_eq!(of(Path::new("x")), Path::new("."));
        make_for(Path::new("x")).unwrap();
    }

    #[test]
    fn a_dead_socket_goes_and_any_other_file_stays() {
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
