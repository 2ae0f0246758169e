//! Fetches a file over HTTP: reliably, and over a slice if a suitable one exists.
//!
//! ```text
//! cargo run -p anabranch-taps --example fetch -- http://server.example/file [slice]
//! ```
//!
//! With `anabranch ue` on this machine, its policy selects the path; otherwise the routes of the host do.

use anabranch_taps::{Connection, MessageContext, Preconnection, Preference, Properties, RemoteEndpoint};
use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "usage: fetch http://HOST[:PORT]/PATH [SLICE]";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_default();
    match fetch(&url, arguments.next()).await {
        Ok(bytes) => {
            eprintln!("{bytes} bytes");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fetch: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn fetch(url: &str, slice: Option<String>) -> Result<usize, Box<dyn std::error::Error>> {
    let (host, path) = url.strip_prefix("http://").and_then(|u| u.split_once('/')).ok_or(USAGE)?;
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().map_err(|_| USAGE)?),
        None => (host, 80),
    };
    let mut properties = Properties { reliability: Preference::Require, ..Properties::default() };
    if let Some(slice) = slice {
        properties.pvd.insert(slice, Preference::Prefer);
    }
    let request = format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    // The request may be repeated, so it can be sent with the handshake if there is one that permits it.
    let (connection, _) = Preconnection::new(properties)
        .remote(RemoteEndpoint::hostname(name).port(port))
        .initiate_with_send(request, &MessageContext::new().safely_replayable())
        .await?;
    describe(&connection);
    let (mut bytes, mut out) = (0, std::io::stdout());
    // Without a framer, the stream is one message, received in parts.
    while let Some(part) = connection.receive().await? {
        bytes += part.data.len();
        out.write_all(&part.data)?;
    }
    connection.close();
    Ok(bytes)
}

fn describe(connection: &Connection) {
    let Some(info) = connection.info() else { return };
    let paths: Vec<String> = info.candidate.paths.iter().map(ToString::to_string).collect();
    let by = if info.by_agent { "the agent" } else { "the routes of this host" };
    eprintln!("{connection:?} by {}, chosen by {by}", paths.join(" + "));
    for reason in &info.candidate.reasons {
        eprintln!("  {}: {} ({:?})", reason.property, reason.has, reason.effect);
    }
    for attempt in &info.failed {
        eprintln!("  tried before: {} ({})", attempt.candidate.endpoint.socket_addr(), attempt.error);
    }
}
