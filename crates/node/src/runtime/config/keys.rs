//! Private key files: 32 bytes in base64, one line, for the owner's eyes only.

use super::load::ConfigError;
use anabranch_atsss::crypto::PrivateKey;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zeroize::Zeroizing;

/// Reads a private key file made by `anabranch keygen`.
///
/// # Errors
/// It cannot be read, or holds no key.
pub fn read_private_key(path: &Path) -> Result<PrivateKey, ConfigError> {
    let place = path.display();
    let wrong = |why: String| {
        ConfigError::new(
            format!("private key {place}"),
            format!("{why}: make one with `anabranch keygen --out {place}`"),
        )
    };
    let text = Zeroizing::new(std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?);
    if std::fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o077 != 0) {
        tracing::warn!("private key {place} can be read by others: chmod 600 {place}");
    }
    text.trim().parse().map_err(|error| wrong(format!("{error}")))
}
