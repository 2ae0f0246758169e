//! `anabranch ctl sessions`.

use super::Output;
use super::client::Client;
use super::error::CtlError;
use super::table::{bytes, list, table, with_rest};
use crate::runtime::api::{Session, SessionList};
use crate::runtime::config::UpfUe;
use anabranch_atsss::crypto::PublicKey;
use reqwest::Method;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

/// Range of a long list.
#[derive(Debug, Clone, clap::Args)]
pub struct Page {
    /// Entries to skip.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    offset: usize,
    /// Maximum number of entries to show.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
}

impl Page {
    /// The query parameters.
    pub fn query(&self) -> [(&'static str, String); 2] {
        [("offset", self.offset.to_string()), ("limit", self.limit.to_string())]
    }
}

/// Actions on sessions; without one, sessions are listed.
#[derive(Debug, clap::Subcommand)]
pub enum Action {
    /// Show one session.
    #[command(after_help = "Example:\n  anabranch ctl sessions show laptop")]
    Show {
        /// Name of the UE.
        ue: String,
    },
    /// Add a UE (UPF only); kept across restarts.
    #[command(after_help = "\
Examples:
  anabranch ctl sessions create tv \\
      --public-key vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o=
  anabranch ctl sessions create tv \\
      --public-key vmHhqE8tcZ4WAGqG4kP5IO2rCzYb1eN3mWvPc7yqC2o= \\
      --address-v4 10.45.0.9 --rules tv.toml")]
    Create {
        /// Name of the UE.
        ue: String,
        /// Public key of the UE, as printed by `anabranch keygen`.
        #[arg(long, value_name = "KEY")]
        public_key: PublicKey,
        /// Fixed inner IPv4 address; default: one from the pool.
        #[arg(long, value_name = "ADDRESS")]
        address_v4: Option<Ipv4Addr>,
        /// Fixed inner IPv6 address; default: one from the pool.
        #[arg(long, value_name = "ADDRESS")]
        address_v6: Option<Ipv6Addr>,
        /// TOML file with [[rule]] sections for this UE only.
        #[arg(long, value_name = "FILE")]
        rules: Option<PathBuf>,
        /// Ignore the rules that the UE requests.
        #[arg(long)]
        refuse_rules: bool,
    },
    /// Forget the last handshake time stamp of a UE (UPF only), after its clock was ahead and has been corrected.
    #[command(after_help = "Example:\n  anabranch ctl sessions reset-clock laptop")]
    ResetClock {
        /// Name of the UE.
        ue: String,
    },
    /// Delete a UE and end its session (UPF only).
    #[command(after_help = "Example:\n  anabranch ctl sessions delete tv")]
    Delete {
        /// Name of the UE.
        ue: String,
    },
}

/// Lists sessions, or runs the action.
pub async fn run(
    client: &Client,
    page: &Page,
    action: Option<&Action>,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    let session = match action {
        None => {
            let list: SessionList = client.get(&["v1", "sessions"], &page.query()).await?;
            return output.show(&list, || list_text(&list));
        }
        Some(Action::Show { ue }) => client.get(&["v1", "sessions", ue], &[]).await?,
        Some(Action::Create { ue, public_key, address_v4, address_v6, rules, refuse_rules }) => {
            let ue = UpfUe {
                name: ue.clone(),
                public_key: *public_key,
                address_v4: *address_v4,
                address_v6: *address_v6,
                rule: rules.as_deref().map(super::rules::read).transpose()?.unwrap_or_default(),
                accept_rules: !refuse_rules,
            };
            client.send_json(Method::POST, &["v1", "sessions"], &ue).await?
        }
        Some(Action::ResetClock { ue }) => client.post(&["v1", "sessions", ue, "reset-clock"]).await?,
        Some(Action::Delete { ue }) => return client.delete(&["v1", "sessions", ue]).await,
    };
    output.show(&session, || session_text(&session))
}

/// The session whose rules are meant: the session of `ue`, or the only session.
pub async fn of_rules(client: &Client, ue: Option<&str>) -> Result<Option<Session>, CtlError> {
    let name = match ue {
        Some(ue) => ue.to_owned(),
        None => {
            let query = [("limit", "2".to_owned())];
            let list: SessionList = client.get(&["v1", "sessions"], &query).await?;
            match &list.sessions[..] {
                [only] if list.total == 1 => only.ue.clone(),
                _ => return Ok(None),
            }
        }
    };
    client.get(&["v1", "sessions", &name], &[]).await.map(Some)
}

fn list_text(list: &SessionList) -> String {
    let rows = list.sessions.iter().map(|s| {
        let up = s.paths.iter().filter(|p| p.up).count();
        vec![
            s.ue.clone(),
            (if s.connected { "up" } else { "down" }).to_owned(),
            format!("{up}/{}", s.paths.len()),
            bytes(s.tx_bytes),
            bytes(s.rx_bytes),
            s.addresses.join(" "),
        ]
    });
    let text = table(&["ue", "state", ">paths", ">tx", ">rx", "addresses"], rows);
    with_rest(text, list.sessions.len(), list.total)
}

fn session_text(session: &Session) -> String {
    let mut text = list(&[
        ("ue", session.ue.clone()),
        ("public key", session.public_key.clone()),
        ("state", (if session.connected { "up" } else { "down" }).into()),
        ("addresses", session.addresses.join(" ")),
        ("tx", format!("{} packets, {}", session.tx_packets, bytes(session.tx_bytes))),
        ("rx", format!("{} packets, {}", session.rx_packets, bytes(session.rx_bytes))),
    ]);
    for path in &session.paths {
        let state = if path.up { "up" } else { "down" };
        let why = path.why.as_ref().map(|w| format!(": {w}")).unwrap_or_default();
        text.push_str(&format!("path {}  {state}{why}\n", path.access));
    }
    if let Some(coded) = &session.coded {
        text.push('\n');
        text.push_str(&super::rules::coded_text(coded));
    }
    text
}
