//! Private key files: 32 bytes in base64, one line, for the owner's eyes only.

use anabranch_core::access::crypto::PrivateKey;
use anyhow::Context;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Reads a private key file made by `anabranch keygen`.
pub fn read_private_key(path: &Path) -> anyhow::Result<PrivateKey> {
    let place = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("private key {place}: make one with `anabranch keygen --out {place}`"))?;
    if std::fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o077 != 0) {
        tracing::warn!("private key {place} can be read by others: chmod 600 {place}");
    }
    text.trim().parse().with_context(|| format!("private key {place}"))
}
