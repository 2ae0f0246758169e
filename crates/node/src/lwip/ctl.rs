//! `anabranch ctl lwip`: an LWIP node, once or repeatedly, its flows, and changes.

use crate::ctl::Output;
use crate::ctl::client::Client;
use crate::ctl::error::CtlError;
use crate::ctl::sessions::Page;
use crate::ctl::table::{bytes, list, or_dash, rate, table, with_rest};
use crate::ctl::watch::{Rates, Watch};
use crate::gnb::ctl::Written;
use crate::runtime::api::{LwipChange, LwipFlows, LwipNode};
use anabranch_lwip::{Hold, OtherTraffic, Steering};
use reqwest::Method;
use serde::Serialize;

/// Actions on the node; without one, it is shown.
#[derive(Debug, clap::Subcommand)]
pub enum LwipAction {
    /// List TCP connections: packets by leg, packets in flight, ACKs held.
    #[command(after_help = "Example:\n  anabranch ctl lwip flows")]
    Flows {
        #[command(flatten)]
        page: Page,
    },
    /// Change steering or hold time, until the next reload or restart.
    #[command(after_help = "\
Examples:
  anabranch ctl lwip set --lte-percent 20 --hold-ms 50
  anabranch ctl lwip set --dida off
  anabranch ctl lwip set --let-through 0 \\
      --steering 'mode=\"fixed_ratio\", lte_percent=50'")]
    Set {
        #[command(flatten)]
        change: Box<Change>,
    },
}

/// Changes to the node.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = true)]
pub struct Change {
    /// Steering of TCP between the legs, keys as in TOML.
    #[arg(long, value_name = "KEYS")]
    steering: Option<Written<Steering>>,
    /// Fixed share of TCP packets over LTE, percent.
    #[arg(long, value_name = "PERCENT", conflicts_with = "steering")]
    lte_percent: Option<f64>,
    /// Leg for UDP: lte, wifi or by_flow.
    #[arg(long, value_name = "LEG")]
    other: Option<Written<OtherTraffic>>,
    /// Enable or disable DIDA, the holding of duplicate ACKs.
    #[arg(long, value_name = "ON|OFF", value_parser = on_or_off)]
    dida: Option<bool>,
    /// Hold time for duplicate ACKs, keys as in TOML.
    #[arg(long, value_name = "KEYS")]
    hold: Option<Written<Hold>>,
    /// Fixed hold time, milliseconds.
    #[arg(long, value_name = "MS", conflicts_with = "hold")]
    hold_ms: Option<f64>,
    /// Number of duplicate ACKs to pass before holding starts.
    #[arg(long, value_name = "NUMBER")]
    let_through: Option<u16>,
}

impl Change {
    fn change(&self) -> LwipChange {
        let ratio = self.lte_percent.map(|lte_percent| Steering::FixedRatio { lte_percent });
        let hold = self.hold_ms.map(|ms| Hold::Fixed { ms });
        LwipChange {
            steering: self.steering.as_ref().map(|steering| steering.0).or(ratio),
            other: self.other.as_ref().map(|other| other.0),
            dida: self.dida,
            hold: self.hold.as_ref().map(|hold| hold.0).or(hold),
            let_through: self.let_through,
        }
    }
}

fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

/// Shows or changes the node, or lists its flows.
pub async fn lwip(
    client: &Client,
    action: Option<&LwipAction>,
    watch: &Watch,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    let path = ["v1", "lwip"];
    match action {
        Some(LwipAction::Flows { page }) => {
            let flows: LwipFlows = client.get(&["v1", "lwip", "flows"], &page.query()).await?;
            return output.show(&flows, || flows_text(&flows));
        }
        Some(LwipAction::Set { change }) => {
            let node: LwipNode = client.send_json(Method::PUT, &path, &change.change()).await?;
            return output.show(&node, || node_text(&node, None));
        }
        None => {}
    }
    let live = watch.repeats();
    let show = async |output: &mut Output<'_>, rates: &mut Rates| {
        let node: LwipNode = client.get(&path, &[]).await?;
        if live && output.json {
            return output.line(&node);
        }
        rates.begin();
        output.show(&node, || node_text(&node, live.then_some(rates)))
    };
    watch.repeat(output, Rates::default(), show).await
}

fn node_text(node: &LwipNode, mut rates: Option<&mut Rates>) -> String {
    let acks = &node.acks;
    let dida = node.dida.as_ref().map_or_else(|| "off".to_owned(), json);
    let ended: Vec<String> =
        node.holds.ended.iter().filter(|(_, n)| **n > 0).map(|(why, n)| format!("{why} {n}")).collect();
    let holds: u64 = node.holds.counts.iter().sum();
    let mean =
        if holds == 0 { "-".to_owned() } else { format!("{:.1} ms", node.holds.sum_ms / holds as f64) };
    let passed: Vec<String> =
        node.passed.iter().filter(|(_, n)| **n > 0).map(|(why, n)| format!("{why} {n}")).collect();
    let or_none = |list: Vec<String>| if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    let mut text = list(&[
        ("name", node.name.clone()),
        ("steering", json(&node.steering)),
        ("dida", dida),
        ("UEs, flows", format!("{}, {}", node.ues, node.flows)),
        ("memory", bytes(node.memory_bytes)),
        ("ACKs", format!("{} advance, {} duplicate", acks.advances, acks.duplicates)),
        ("let through", format!("{}; {} third ones", acks.let_through, acks.triple_duplicates)),
        (
            "held",
            format!(
                "{}: {} superseded, {} sent, {} now",
                acks.held, acks.superseded, acks.released, acks.holding
            ),
        ),
        ("holds", format!("{holds}, mean {mean}; ended by: {}", or_none(ended))),
        ("passed", or_none(passed)),
    ]);
    let mut columns = vec!["leg", ">packets", ">bytes", ">TCP data", ">share"];
    if rates.is_some() {
        columns.push(">rate");
    }
    let rows = node.legs.iter().map(|leg| {
        let mut cells = vec![
            leg.leg.clone(),
            leg.packets.to_string(),
            bytes(leg.bytes),
            leg.steered.to_string(),
            format!("{:.1} %", leg.steered_percent),
        ];
        if let Some(rates) = rates.as_deref_mut() {
            cells.push(or_dash(rates.bps(leg.leg.clone(), leg.bytes).map(rate)));
        }
        cells
    });
    text.push('\n');
    text.push_str(&table(&columns, rows.collect::<Vec<_>>()));
    if !node.links.is_empty() {
        let columns = ["ue", "leg", "probes", ">RTT", ">rate", ">sent", ">answered"];
        let rows = node.links.iter().map(|link| {
            vec![
                link.ue.clone(),
                link.leg.clone(),
                if link.up { "up" } else { "down" }.to_owned(),
                or_dash(link.rtt_ms.map(|ms| format!("{ms:.1} ms"))),
                or_dash(link.rate_bps.map(rate)),
                link.probes.to_string(),
                link.answers.to_string(),
            ]
        });
        text.push('\n');
        text.push_str(&table(&columns, rows.collect::<Vec<_>>()));
    }
    text
}

/// A value as compact JSON, the form of the REST interface.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn flows_text(flows: &LwipFlows) -> String {
    let columns =
        ["server", "ue", ">LTE packets", ">Wi-Fi packets", ">under way", ">holding", ">held", ">idle"];
    let rows = flows.flows.iter().map(|flow| {
        vec![
            flow.server.clone(),
            flow.ue.clone(),
            flow.lte_packets.to_string(),
            flow.wifi_packets.to_string(),
            bytes(flow.in_flight_bytes.into()),
            flow.holding.to_string(),
            flow.held.to_string(),
            format!("{:.1} s", flow.idle_s),
        ]
    });
    with_rest(table(&columns, rows.collect::<Vec<_>>()), flows.flows.len(), flows.total)
}
