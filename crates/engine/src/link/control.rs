//! The control socket of a running link: one JSON object per line in, one per line out.

use anabranch_link::{Direction, LinkPatch};
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Maximum number of simultaneous connections.
const MAX_CONNECTIONS: usize = 16;
/// Maximum length of a request, bytes.
const MAX_LINE_BYTES: usize = 16 << 10;

/// A request to a running link.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Request {
    /// Change keys of one direction or both.
    Set {
        #[serde(default)]
        direction: Direction,
        change: LinkPatch,
    },
    /// Return the counters.
    Stats,
    /// End the link.
    Stop,
}

/// The listening socket and its connections.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    path: PathBuf,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Control {
    /// Serves a listening socket, whose file at `path` is removed at the end.
    ///
    /// # Errors
    /// The socket cannot be made non-blocking.
    pub fn new(listener: UnixListener, path: &Path) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path: path.to_owned(), connections: Vec::new() })
    }

    /// File descriptors to poll: the listener, then the connections.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.connections.iter().map(|c| c.stream.as_fd()))
    }

    /// Serves the readable ones of [`fds`](Self::fds). Never blocks: a client that does not read its answers
    /// is disconnected.
    pub(super) fn serve(&mut self, readable: &[bool], mut answer: impl FnMut(Request) -> Result<Value>) {
        let mut index = 0;
        self.connections.retain_mut(|connection| {
            index += 1;
            !readable.get(index).copied().unwrap_or(false) || connection.serve(&mut answer)
        });
        if readable.first().copied().unwrap_or(false)
            && let Ok((stream, _)) = self.listener.accept()
            && self.connections.len() < MAX_CONNECTIONS
            && stream.set_nonblocking(true).is_ok()
        {
            self.connections.push(Connection { stream, pending: Vec::new() });
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The file may already have been removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Connection {
    /// Serves a connection; false when it has ended.
    fn serve(&mut self, answer: &mut impl FnMut(Request) -> Result<Value>) -> bool {
        let mut chunk = [0; 4096];
        let open = match self.stream.read(&mut chunk) {
            Ok(0) => false,
            Ok(n) => {
                self.pending.extend_from_slice(&chunk[..n]);
                true
            }
            Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let reply = serde_json::from_slice(&line)
                .context("request")
                .and_then(&mut *answer)
                .unwrap_or_else(|e| json!({ "error": format!("{e:#}") }));
            if self.stream.write_all(format!("{reply}\n").as_bytes()).is_err() {
                return false;
            }
        }
        open && self.pending.len() <= MAX_LINE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};

    fn ask(requests: &str) -> Vec<Value> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut control = Control::new(UnixListener::bind(&path).unwrap(), &path).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(requests.as_bytes()).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        for _ in 0..20 {
            let all = vec![true; control.fds().count()];
            control.serve(&all, |request| Ok(json!(format!("{request:?}"))));
        }
        // A connection that is closed with unread bytes ends with an error.
        let lines = BufReader::new(client).lines().map_while(std::result::Result::ok);
        lines.map(|l| serde_json::from_str(&l).unwrap()).collect()
    }

    #[test]
    fn requests_are_answered_line_by_line() {
        let answers =
            ask("{\"op\":\"stats\"}\n{\"op\":\"set\",\"change\":{\"up\":false}}\n{\"op\":\"set\",\"chan");
        assert_eq!(answers.len(), 2);
        assert_eq!(answers[0], "Stats");
        assert!(answers[1].as_str().unwrap().contains("direction: Both"));
    }

    #[test]
    fn errors_are_answered_and_the_connection_continues() {
        let answers = ask("nonsense\n{\"op\":\"set\",\"change\":{\"rate\":1}}\n{\"op\":\"stop\"}\n");
        assert!(answers[0]["error"].as_str().unwrap().starts_with("request"));
        assert!(answers[1]["error"].as_str().unwrap().contains("rate_bps"), "{answers:?}");
        assert_eq!(answers[2], "Stop");
    }

    #[test]
    fn an_endless_line_ends_the_connection() {
        assert_eq!(ask(&"x".repeat(MAX_LINE_BYTES + 4097)), Vec::<Value>::new());
    }
}
