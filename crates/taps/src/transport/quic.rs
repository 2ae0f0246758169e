//! QUIC with quinn: a connection is one bidirectional stream; clones are further streams of the same QUIC connection.

use super::marked::Marked;
use super::{Link, Opened, Reader, Recipe, Writer};
use crate::group::ConnectionProperties;
use crate::security::Security;
use crate::setup::{Setup, whole_ms, whole_s};
use anabranch_selection::plan::{self, PlanConfig};
use bytes::Bytes;
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, IdleTimeout, SendStream, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of streams that the peer may have open in one connection.
const MAX_STREAMS: u32 = 256;
/// Maximum number of connections with a handshake in progress.
const MAX_INCOMING: usize = 1024;
/// How long to wait for the peer to acknowledge the last data.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn open(
    recipe: &Recipe,
    connection_properties: &ConnectionProperties,
    first: Option<&Bytes>,
) -> io::Result<Opened> {
    let (socket, mut refused) = recipe.setup.socket(recipe.protocol, recipe.remote, &recipe.local)?;
    let endpoint = endpoint(socket.into(), None, recipe.setup.dscp)?;
    let crypto = recipe.security.client().map_err(io::Error::other)?;
    let mut config = ClientConfig::new(crypto);
    config.transport_config(Arc::new(transport(&recipe.setup, connection_properties, &mut refused)?));
    let connecting = endpoint
        .connect_with(config, recipe.remote, &recipe.server_name)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    let (connection, early) = match first {
        None => (connecting.await?, None),
        Some(_) => match connecting.into_0rtt() {
            Ok((connection, accepted)) => (connection, Some(accepted)),
            // No resumption state.
            Err(connecting) => (connecting.await?, None),
        },
    };
    let (mut send, mut receive) = connection.open_bi().await?;
    let mut sent_first = false;
    if let (Some(accepted), Some(first)) = (early, first) {
        send.write_all(first).await?;
        sent_first = accepted.await;
        if !sent_first {
            // The server rejected early data; the stream opened before the handshake does not exist.
            (send, receive) = connection.open_bi().await?;
        }
    }
    Ok(Opened {
        reader: Reader::Quic(receive),
        writer: Writer::Quic(send),
        link: Link::Quic(connection, endpoint),
        refused,
        sent_first,
    })
}

/// The parts of a plan that QUIC implements itself: congestion control and initial window.
fn transport(
    setup: &Setup,
    connection_properties: &ConnectionProperties,
    refused: &mut Vec<String>,
) -> io::Result<TransportConfig> {
    let mut config = common(connection_properties)?;
    let window = setup.window.map(|w| u64::from(w.segments) * u64::from(PlanConfig::default().segment_bytes));
    let mut cubic = CubicConfig::default();
    let mut reno = NewRenoConfig::default();
    let mut bbr = BbrConfig::default();
    if let Some(bytes) = window {
        cubic.initial_window(bytes);
        reno.initial_window(bytes);
        bbr.initial_window(bytes);
    }
    let factory: Arc<dyn ControllerFactory + Send + Sync> = match setup.congestion_control.as_deref() {
        Some("cubic") | None => Arc::new(cubic),
        Some("reno") => Arc::new(reno),
        Some("bbr") => Arc::new(bbr),
        Some(other) => {
            refused
                .push(format!("congestion control {other}: quic has cubic, reno and bbr; it is cubic now"));
            Arc::new(cubic)
        }
    };
    config.congestion_controller_factory(factory);
    Ok(config)
}

fn common(connection_properties: &ConnectionProperties) -> io::Result<TransportConfig> {
    let mut config = TransportConfig::default();
    config.max_concurrent_bidi_streams(VarInt::from_u32(MAX_STREAMS));
    // Unidirectional streams are not used.
    config.max_concurrent_uni_streams(VarInt::from_u32(0));
    config.keep_alive_interval(connection_properties.keep_alive_timeout.map(whole_s));
    if let Some(timeout) = connection_properties.timeout {
        let timeout = IdleTimeout::try_from(whole_ms(timeout));
        let timeout = timeout.map_err(|e| io::Error::other(format!("property \"connTimeout\": {e}")))?;
        config.max_idle_timeout(Some(timeout));
    }
    Ok(config)
}

/// A server on a bound socket.
pub(crate) fn server(
    socket: std::net::UdpSocket,
    security: &Security,
    early: bool,
    connection_properties: &ConnectionProperties,
) -> io::Result<Endpoint> {
    let crypto = security.server(early).map_err(io::Error::other)?;
    let mut config = ServerConfig::with_crypto(crypto);
    config.transport_config(Arc::new(common(connection_properties)?));
    config.max_incoming(MAX_INCOMING);
    endpoint(socket, Some(config), Some(plan::dscp(connection_properties.capacity_profile)))
}

/// An endpoint whose datagrams have this DSCP.
fn endpoint(
    socket: std::net::UdpSocket,
    server: Option<ServerConfig>,
    dscp: Option<u8>,
) -> io::Result<Endpoint> {
    let (config, runtime) = (EndpointConfig::default(), Arc::new(TokioRuntime));
    match dscp.filter(|dscp| *dscp > 0) {
        Some(dscp) => Endpoint::new_with_abstract_socket(config, server, Marked::new(socket, dscp)?, runtime),
        None => Endpoint::new(config, server, socket, runtime),
    }
}

/// Opens another stream of an open connection.
pub(crate) async fn another(connection: &Connection, endpoint: &Endpoint) -> io::Result<Opened> {
    let (send, receive) = connection.open_bi().await?;
    Ok(opened(connection, endpoint, send, receive))
}

/// Accepts the next stream opened by the peer.
pub(crate) async fn accept_stream(connection: &Connection, endpoint: &Endpoint) -> io::Result<Opened> {
    let (send, receive) = connection.accept_bi().await?;
    Ok(opened(connection, endpoint, send, receive))
}

fn opened(
    connection: &Connection,
    endpoint: &Endpoint,
    send: SendStream,
    receive: quinn::RecvStream,
) -> Opened {
    Opened {
        reader: Reader::Quic(receive),
        writer: Writer::Quic(send),
        link: Link::Quic(connection.clone(), endpoint.clone()),
        refused: Vec::new(),
        sent_first: false,
    }
}

pub(super) async fn finish(stream: &mut SendStream) -> io::Result<()> {
    if stream.finish().is_err() {
        // The stream was already reset.
        return Ok(());
    }
    match tokio::time::timeout(CLOSE_TIMEOUT, stream.stopped()).await {
        Ok(Ok(_)) | Err(_) => Ok(()),
        Ok(Err(error)) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, error)),
    }
}
