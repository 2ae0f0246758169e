//! `anabranch ctl events`: the event stream (server-sent events, WHATWG HTML §9.2) as lines.

use super::Output;
use super::client::Client;
use super::error::CtlError;
use super::table::time;
use crate::runtime::api::{Event, EventKind, NO_SUCH_PATH, Status};
use anabranch_element::names::UnknownName;
use serde_json::Value;
use std::time::Duration;

/// Stored events arrive in one burst; with `--no-follow`, a pause of this length marks their end.
const QUIET: Duration = Duration::from_millis(400);
/// Upper bound on the length of one event.
const MAX_BYTES: usize = 1 << 20;

/// Selection of events.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Only events after the one with this id.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    since: u64,
    /// Only events of this UE.
    #[arg(long, value_name = "NAME")]
    ue: Option<String>,
    /// Only events of this kind, such as path-down; may be repeated.
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// Print the stored events and exit.
    #[arg(long)]
    no_follow: bool,
}

/// Rejects an unknown kind of event, which would never arrive. An agent of another version may have further kinds; then a
/// warning is printed instead.
fn check(unknown: &UnknownName, version: &str) -> Result<String, CtlError> {
    if version == env!("CARGO_PKG_VERSION") {
        return Err(CtlError::Usage(format!("--kind: {unknown}")));
    }
    Ok(format!("--kind: {unknown}; the agent may have further kinds, because its version is {version}"))
}

/// Prints events until interrupted.
pub async fn run(client: &Client, args: &Args, output: &mut Output<'_>) -> Result<(), CtlError> {
    if let Some(unknown) = args.kinds.iter().find_map(|kind| kind.parse::<EventKind>().err()) {
        let status: Status = client.get(&["v1", "status"], &[]).await?;
        eprintln!("anabranch: {}", check(&unknown, &status.version)?);
    }
    let mut response = client.stream(&["v1", "events"], &[("since", args.since.to_string())]).await?;
    if !args.no_follow
        && let Some(error) = unknown_ue(client, args).await
    {
        eprintln!("anabranch: {error}; its events are awaited");
    }
    let mut parser = Parser::default();
    let (mut last, mut shown) = (args.since, false);
    loop {
        let chunk = client.chunk(&mut response);
        let chunk = if args.no_follow {
            match tokio::time::timeout(QUIET, chunk).await {
                Ok(chunk) => chunk?,
                Err(_) if shown => return Ok(()),
                Err(_) => return unknown_ue(client, args).await.map_or(Ok(()), Err),
            }
        } else {
            chunk.await?
        };
        let Some(chunk) = chunk else {
            return Err(CtlError::Unreachable {
                place: client.place().to_owned(),
                cause: "the agent ended the stream".into(),
                remedy: format!("the agent has stopped; when it runs again, continue with --since {last}"),
            });
        };
        for event in parser.take(&chunk)? {
            if last > 0 && event.id > last + 1 {
                eprintln!("anabranch: {} events missed", event.id - last - 1);
            }
            last = event.id;
            shown |= show(&event, args, output)?;
        }
    }
}

/// The answer of the agent if it does not know the UE whose events are asked for. Other agents have UEs, or
/// none, but no sessions.
async fn unknown_ue(client: &Client, args: &Args) -> Option<CtlError> {
    let session = client.get::<Value>(&["v1", "sessions", args.ue.as_ref()?], &[]).await;
    session.err().filter(|error| match error {
        CtlError::Refused { problem, .. } => problem.status == 404 && problem.detail != NO_SUCH_PATH,
        _ => false,
    })
}

/// Prints an event if it is selected; returns whether it is.
fn show(event: &Event, args: &Args, output: &mut Output<'_>) -> Result<bool, CtlError> {
    let kind = args.kinds.is_empty() || args.kinds.contains(&event.kind);
    let ue = args.ue.is_none() || args.ue == event.ue;
    if !kind || !ue {
        return Ok(false);
    }
    if output.json {
        output.line(event)?;
        return Ok(true);
    }
    let ue = event.ue.as_ref().map(|ue| format!("{ue}: ")).unwrap_or_default();
    writeln!(
        output.to,
        "{}  {:>4}  {:17}  {ue}{}",
        time(event.time_unix_ms),
        event.id,
        event.kind,
        event.message
    )?;
    output.to.flush()?;
    Ok(true)
}

/// Splits a server-sent event stream into events, whatever the boundaries of the chunks.
#[derive(Default)]
struct Parser(Vec<u8>);

impl Parser {
    fn take(&mut self, chunk: &[u8]) -> Result<Vec<Event>, CtlError> {
        self.0.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(end) = self.0.windows(2).position(|w| w == b"\n\n") {
            let block: Vec<u8> = self.0.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&block);
            let data: Vec<&str> =
                text.lines().filter_map(|l| l.strip_prefix("data:")).map(str::trim_start).collect();
            // A block without data is a comment that keeps the connection open.
            if !data.is_empty() {
                let event = serde_json::from_str(&data.join("\n"));
                events.push(event.map_err(|e| CtlError::failed("event stream", e))?);
            }
        }
        if self.0.len() > MAX_BYTES {
            return Err(CtlError::failed("event stream", "no event in 1 MiB; is this an anabranch agent?"));
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_is_refused_unless_the_agent_may_have_it() {
        let unknown = "from-the-future".parse::<EventKind>().unwrap_err();
        assert!(check(&unknown, env!("CARGO_PKG_VERSION")).is_err());
        assert!(check(&unknown, "99.0.0").unwrap().contains("version is 99.0.0"));
    }

    #[test]
    fn events_are_found_wherever_the_stream_is_cut() {
        let stream = b": hello\n\nid: 1\nevent: path-up\ndata: {\"id\":1,\"time_unix_ms\":5,\"kind\":\"path-up\",\
                       \"message\":\"5g is up\"}\n\n:\n\nid: 2\ndata: {\"id\":2,\"time_unix_ms\":6,\"kind\":\"x\",\
                       \"message\":\"y\"}\n\n";
        for cut in 0..stream.len() {
            let mut parser = Parser::default();
            let mut events = parser.take(&stream[..cut]).unwrap();
            events.extend(parser.take(&stream[cut..]).unwrap());
            assert_eq!(events.iter().map(|e| e.id).collect::<Vec<_>>(), [1, 2], "cut at {cut}");
        }
        assert!(Parser::default().take(b"data: no\n\n").is_err());
        assert!(Parser::default().take(&vec![b'x'; MAX_BYTES + 1]).is_err());
    }
}
