//! Keys as text: 32 bytes in base64, one line.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;

/// Reads a private key file made by `anabranch keygen`.
pub fn read_private_key(path: &Path) -> anyhow::Result<[u8; 32]> {
    let place = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| {
        anyhow::anyhow!("private key {place}: {e}; make one with `anabranch keygen --out {place}`")
    })?;
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path)?);
    if mode & 0o077 != 0 {
        tracing::warn!("private key {place} can be read by others: chmod 600 {place}");
    }
    decode(text.trim()).map_err(|e| anyhow::anyhow!("private key {place} {e}"))
}

/// Parses a public key.
pub fn read_public_key(text: &str) -> Result<[u8; 32], String> {
    decode(text.trim())
}

/// A key as text.
pub fn encode_key(key: &[u8; 32]) -> String {
    STANDARD.encode(key)
}

fn decode(text: &str) -> Result<[u8; 32], String> {
    STANDARD
        .decode(text)
        .ok()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| "is not 32 bytes in base64 (44 characters, as `anabranch keygen` prints)".to_owned())
}
