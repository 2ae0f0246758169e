//! Reading of configuration files.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Maximum size of a scenario or trace, in bytes; also ends the reading of endless devices.
pub const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Reads a text file.
///
/// # Errors
/// The file cannot be read, is larger than [`MAX_TEXT_BYTES`], or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(MAX_TEXT_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_TEXT_BYTES {
        let what = format!("it has more than {} MiB", MAX_TEXT_BYTES >> 20);
        return Err(Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_file_is_too_large() {
        let why = read_text(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(why, "it has more than 64 MiB");
        assert!(read_text(Path::new("/dev/null")).unwrap().is_empty());
        assert!(read_text(Path::new("/no/such/file")).is_err());
    }
}
