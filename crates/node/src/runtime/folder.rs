//! Folders of files that the program writes: sockets, state.

use anyhow::{Context, bail};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

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
}
