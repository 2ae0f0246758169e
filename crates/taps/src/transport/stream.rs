//! TCP and Multipath TCP.

use super::{Link, Opened, Read, Reader, Recipe, Writer, is_soft, taken};
use crate::group::ConnectionProperties;
use bytes::{BufMut, BytesMut};
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::sync::Arc;
use tokio::net::{TcpSocket, TcpStream};

pub(super) async fn open(
    recipe: &Recipe,
    connection_properties: &ConnectionProperties,
) -> io::Result<Opened> {
    let (socket, refused) = recipe.setup.socket(recipe.protocol, recipe.remote, &recipe.local)?;
    let socket = TcpSocket::from_std_stream(socket.into());
    let stream = socket.connect(recipe.remote).await?;
    connection_properties.apply_all(&socket2::SockRef::from(&stream))?;
    if recipe.soft_errors {
        // Without this option, ICMP errors show only when the connection is given up.
        match recipe.remote.is_ipv6() {
            true => setsockopt(&stream, sockopt::Ipv6RecvErr, &true)?,
            false => setsockopt(&stream, sockopt::Ipv4RecvErr, &true)?,
        }
    }
    let mut opened = opened(stream);
    opened.refused = refused;
    Ok(opened)
}

/// Reader, writer and link of a stream.
pub(crate) fn opened(stream: TcpStream) -> Opened {
    let stream = Arc::new(stream);
    Opened {
        reader: Reader::Stream(stream.clone(), BytesMut::new()),
        writer: Writer::Stream(stream.clone()),
        link: Link::Stream(stream),
        refused: Vec::new(),
        sent_first: false,
    }
}

pub(super) async fn read(stream: &TcpStream, buffer: &mut BytesMut, most: usize) -> io::Result<Read> {
    loop {
        stream.readable().await?;
        buffer.reserve(most);
        match stream.try_read_buf(&mut (&mut *buffer).limit(most)) {
            Ok(0) => return Ok(Read::End),
            Ok(_) => return Ok(Read::Data(taken(buffer))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if passes(stream, &error) => return Ok(Read::Soft(error)),
            Err(error) => return Err(error),
        }
    }
}

/// Whether the connection continues after an error. A connection that was given up fails with the last ICMP error, and would
/// afterwards appear to have ended regularly.
fn passes(stream: &TcpStream, error: &io::Error) -> bool {
    is_soft(error) && stream.peer_addr().is_ok()
}

pub(super) async fn write(
    stream: &TcpStream,
    mut data: &[u8],
    soft: &mut (dyn FnMut(io::Error) + Send),
) -> io::Result<()> {
    while !data.is_empty() {
        stream.writable().await?;
        match stream.try_write(data) {
            Ok(written) => data = &data[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if passes(stream, &error) => soft(error),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
