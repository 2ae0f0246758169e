//! A TCP flow: connects to the server, then relays both directions until both ends have finished
//! ([`crate::runtime::relay`]).

use super::flows::{Entry, FlowProperties, OpenedCandidate, Refused};
use super::rules::Transport;
use super::{ChosenCandidates, Proxy, race};
use crate::runtime::relay::{self, failure, reset};
use socket2::SockRef;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Serves an intercepted connection.
pub async fn serve(proxy: Arc<Proxy>, client: TcpStream, from: SocketAddr) {
    // The local address is the program's destination.
    let Ok(server) = client.local_addr() else { return reset(&client) };
    let known = FlowProperties::new(Transport::Tcp, server);
    let Some(entry) = proxy.flows.open(from.ip(), from, known) else { return reset(&client) };
    // A reset is also sent if this program ends before the server is reached.
    reset(&client);
    let far = tokio::select! {
        far = reach(&proxy, &entry, from, server) => far,
        // A client that closes the connection meanwhile ends the attempt.
        _ = failure(&client) => Err(None),
    };
    match far {
        Ok(far) => {
            let keepalive = Duration::from_secs(proxy.limits.load().keepalive_s.into());
            // The options of the server's socket were set when it was opened.
            let _ = relay::relayed(&SockRef::from(&client), keepalive);
            entry.relay(&Arc::new(client), &Arc::new(far)).await;
        }
        Err(why) => {
            if let Some(why) = why {
                proxy.flows.refused.count(why);
            }
            reset(&client);
        }
    }
}

/// Opens the connection to the server.
async fn reach(
    proxy: &Arc<Proxy>,
    entry: &Entry,
    client: SocketAddr,
    server: SocketAddr,
) -> Result<TcpStream, Option<Refused>> {
    let ChosenCandidates { candidates, origin, source } = proxy.choose(&entry.flow).await?;
    match race::connect(proxy, &candidates, server, source).await {
        Ok((candidate, far)) => {
            let _ = entry.flow.of.opened.set(OpenedCandidate { candidate, origin });
            Ok(far)
        }
        Err(error) => {
            let rule = entry.flow.rule.get();
            tracing::debug!(%client, %server, rule, "the server cannot be reached: {error}");
            Err(Some(if relay::no_descriptors(&error) { Refused::Socket } else { Refused::Unreachable }))
        }
    }
}
