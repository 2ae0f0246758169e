//! WireGuard implementations in user space, configured over their socket as
//! <https://www.wireguard.com/xplatform/#configuration-protocol> says.

use anabranch_atsss::crypto::PrivateKey;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

/// Folder of their sockets.
pub fn socket(device: &str) -> String {
    format!("/var/run/wireguard/{device}.sock")
}

/// One endpoint and its only peer.
pub struct End<'a> {
    pub device: &'a str,
    pub key: &'a PrivateKey,
    pub listen_port: u16,
    pub peer: &'a PrivateKey,
    pub endpoint: Option<SocketAddr>,
    pub allowed: &'a str,
}

/// Configures keys and peer of the endpoint.
pub fn configure(end: &End<'_>) -> Result<()> {
    let path = socket(end.device);
    let mut stream = UnixStream::connect(&path).with_context(|| path.clone())?;
    let private = private_bytes(end.key)?;
    let mut text = format!(
        "set=1\nprivate_key={}\nlisten_port={}\npublic_key={}\n",
        hex(&private),
        end.listen_port,
        hex(&end.peer.public().0)
    );
    if let Some(endpoint) = end.endpoint {
        text.push_str(&format!("endpoint={endpoint}\n"));
    }
    text.push_str(&format!("replace_allowed_ips=true\nallowed_ip={}\n\n", end.allowed));
    stream.write_all(text.as_bytes()).with_context(|| path.clone())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).with_context(|| path.clone())?;
    ensure!(answer.trim() == "errno=0", "{path}: the configuration is refused: {}", answer.trim());
    Ok(())
}

fn private_bytes(key: &PrivateKey) -> Result<[u8; 32]> {
    let text = key.to_base64();
    decode(&text).context("a private key of 32 bytes")
}

/// Base64 of 32 bytes.
fn decode(text: &str) -> Option<[u8; 32]> {
    let mut bytes = Vec::with_capacity(33);
    let (mut held, mut bits) = (0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    bytes.try_into().ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_in_both_notations() {
        let key = PrivateKey::from_bytes([0xa5; 32]);
        assert_eq!(private_bytes(&key).unwrap(), [0xa5; 32]);
        assert_eq!(hex(&[0xa5, 0x01]), "a501");
        assert!(decode("A-B=").is_none());
    }
}
