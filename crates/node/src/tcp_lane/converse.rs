//! Messages of the Convert Protocol on a connection. No byte beyond the message is read.

use anabranch_wire::WireError;
use anabranch_wire::convert::{HEADER_BYTES, message_bytes};
use std::io::{self, ErrorKind};
use tokio::net::TcpStream;

/// Reason for a missing message.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The connection failed or ended.
    #[error(transparent)]
    Failed(#[from] io::Error),
    /// The bytes are not a valid message.
    #[error(transparent)]
    Malformed(#[from] WireError),
}

/// Receives the next message completely.
pub async fn receive(stream: &TcpStream) -> Result<Vec<u8>, ReceiveError> {
    let mut bytes = vec![0; HEADER_BYTES];
    read_exact(stream, &mut bytes).await?;
    let length = message_bytes(&bytes)?;
    bytes.resize(length, 0);
    read_exact(stream, &mut bytes[HEADER_BYTES..]).await?;
    Ok(bytes)
}

/// Sends all of `bytes`.
pub async fn send(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn read_exact(stream: &TcpStream, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        stream.readable().await?;
        match stream.try_read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(got) => into = &mut into[got..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
