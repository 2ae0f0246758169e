//! `anabranch keygen`: a key pair.

use crate::runtime::folder;
use anabranch_atsss::crypto::PrivateKey;
use anyhow::Context;
use rand_core::{OsRng, TryRngCore};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Arguments of `anabranch keygen`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The private key is written to a file that only its owner can read. The public
key is printed, for the configuration of the peer.

Example:
  anabranch keygen --out /etc/anabranch/ue.key
  anabranch keygen --public /etc/anabranch/ue.key      print the public key")]
pub struct Args {
    /// File for the new private key; it must not exist. Missing parent directories are created.
    #[arg(long, value_name = "FILE", required_unless_present = "public")]
    out: Option<PathBuf>,
    /// Print the public key of this private key file; generate nothing.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    public: Option<PathBuf>,
}

/// Writes a private key and prints its public key.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let key = match (&args.public, &args.out) {
        (Some(file), _) => crate::runtime::config::read_private_key(file)?,
        (None, Some(file)) => {
            let key = generate()?;
            write(file, &key).with_context(|| format!("private key {}", file.display()))?;
            key
        }
        (None, None) => anyhow::bail!("give --out FILE or --public FILE"),
    };
    println!("{}", key.public());
    Ok(())
}

/// 32 bytes from the system's random number generator.
pub fn random_seed() -> anyhow::Result<[u8; 32]> {
    let mut seed = [0; 32];
    OsRng.try_fill_bytes(&mut seed).context("the operating system's random numbers")?;
    Ok(seed)
}

fn generate() -> anyhow::Result<PrivateKey> {
    let mut bytes = Zeroizing::new(random_seed()?);
    // X25519 ignores these bits (RFC 7748 §5); other tools expect them in the stored form.
    bytes[0] &= 0xf8;
    bytes[31] = bytes[31] & 0x7f | 0x40;
    Ok(PrivateKey::from_bytes(*bytes))
}

fn write(file: &Path, key: &PrivateKey) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder::of(file))?;
    let mut open = std::fs::OpenOptions::new();
    let mut file = open.write(true).create_new(true).mode(0o600).open(file).context(
        "cannot be created; an existing key is never overwritten: remove it, or choose another file",
    )?;
    let text = Zeroizing::new(format!("{}\n", *key.to_base64()));
    file.write_all(text.as_bytes())?;
    file.sync_all().map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_key_is_the_owners_alone_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/ue.key");
        let key = generate().unwrap();
        write(&file, &key).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(crate::runtime::config::read_private_key(&file).unwrap().public(), key.public());
        assert!(write(&file, &generate().unwrap()).unwrap_err().to_string().contains("never overwritten"));
        assert_ne!(generate().unwrap().public(), generate().unwrap().public());
    }
}
