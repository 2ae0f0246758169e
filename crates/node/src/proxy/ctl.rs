//! `anabranch ctl proxy`: a transparent proxy, once or repeatedly, and its flows.

use crate::ctl::Output;
use crate::ctl::client::Client;
use crate::ctl::error::CtlError;
use crate::ctl::sessions::Page;
use crate::ctl::table::{bytes, counted, list, or_dash, rate, table, with_rest};
use crate::ctl::watch::{Rates, Watch};
use crate::runtime::api::{ProxyFlow, ProxyFlows, ProxyNode};
use anabranch_selection::plan::Action;

/// What to show; by default the proxy.
#[derive(Debug, clap::Subcommand)]
pub enum ProxyAction {
    /// List flows, oldest first: rule, slice, plan, bytes.
    #[command(after_help = "Example:\n  anabranch ctl proxy flows --limit 1000")]
    Flows {
        #[command(flatten)]
        page: Page,
    },
}

/// Shows the proxy or its flows.
pub async fn proxy(
    client: &Client,
    action: Option<&ProxyAction>,
    watch: &Watch,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    if let Some(ProxyAction::Flows { page }) = action {
        let flows: ProxyFlows = client.get(&["v1", "proxy", "flows"], &page.query()).await?;
        return output.show(&flows, || flows_text(&flows));
    }
    let live = watch.repeats();
    let show = async |output: &mut Output<'_>, rates: &mut Rates| {
        let node: ProxyNode = client.get(&["v1", "proxy"], &[]).await?;
        if live && output.json {
            return output.line(&node);
        }
        rates.begin();
        output.show(&node, || node_text(&node, live.then_some(rates)))
    };
    watch.repeat(output, Rates::default(), show).await
}

fn node_text(node: &ProxyNode, mut rates: Option<&mut Rates>) -> String {
    let agent = match (node.agent.answers, &node.agent.failure) {
        (None, _) if node.agent.place == "off" => "flows go as routes have it".to_owned(),
        (None, _) => "not asked yet".to_owned(),
        (Some(true), _) => {
            format!("answers; {} questions, {} answers kept", node.agent.asked, node.agent.known)
        }
        (Some(false), why) => why.clone().unwrap_or_else(|| "does not answer".to_owned()),
    };
    let local = node.local.then(|| "this machine".to_owned());
    let from: Vec<String> = local.into_iter().chain(node.interfaces.iter().cloned()).collect();
    let mut text = list(&[
        ("name", node.name.clone()),
        ("takes", format!("flows from {}, at port {}", from.join(", "), node.port)),
        ("agent", format!("{}: {agent}", node.agent.place)),
        ("rules", node.rules.join(", ")),
        ("flows", format!("{} of {}", node.flows, node.max_flows)),
        ("plans", counted(&node.plans)),
        ("refused", counted(&node.refused)),
        ("retries, resets", format!("{}, {}", node.retries, node.resets)),
        ("dropped", format!("{} datagrams", node.datagrams_dropped)),
    ]);
    let mut columns = vec!["rule", "slice", ">flows", ">up", ">down"];
    if rates.is_some() {
        columns.extend([">up now", ">down now"]);
    }
    let rows = node.carried.iter().map(|c| {
        let slice = if c.slice.is_empty() { "-".to_owned() } else { c.slice.clone() };
        let mut cells =
            vec![c.rule.clone(), slice, c.flows.to_string(), bytes(c.up_bytes), bytes(c.down_bytes)];
        if let Some(rates) = rates.as_deref_mut() {
            let key = |way: &str| format!("{}\n{}\n{way}", c.rule, c.slice);
            cells.push(or_dash(rates.bps(key("up"), c.up_bytes).map(rate)));
            cells.push(or_dash(rates.bps(key("down"), c.down_bytes).map(rate)));
        }
        cells
    });
    text.push('\n');
    text.push_str(&table(&columns, rows.collect::<Vec<_>>()));
    text
}

fn flows_text(flows: &ProxyFlows) -> String {
    let columns = ["", "client", "server", "rule", "slice", "by", "plan", ">up", ">down", ">age"];
    let rows = flows.flows.iter().map(|flow| {
        let way = flow.way.as_ref();
        vec![
            flow.transport.clone(),
            flow.client.clone(),
            flow.server.clone(),
            flow.rule.clone(),
            or_dash(way.and_then(|w| w.slice.clone())),
            or_dash(way.and_then(|w| w.interface.clone())),
            plan(flow),
            bytes(flow.up_bytes),
            bytes(flow.down_bytes),
            format!("{:.1} s", flow.age_s),
        ]
    });
    with_rest(table(&columns, rows.collect::<Vec<_>>()), flows.flows.len(), flows.total)
}

/// The steps of a flow's plan in short form.
fn plan(flow: &ProxyFlow) -> String {
    let Some(way) = &flow.way else { return "connecting".to_owned() };
    let word = |step: &Action| match step {
        Action::Mptcp => "MPTCP".to_owned(),
        Action::Mark { mark, .. } => format!("mark {mark}"),
        Action::LocalAddress { address, .. } => format!("from {address}"),
        Action::Device { interface } => format!("device {interface}"),
        Action::InitialWindow { route_bucket, .. } => format!("window {route_bucket}"),
        Action::Pacing { bps } => format!("pace {}", rate(*bps as f64)),
        Action::MptcpEndpoint { address, .. } => format!("and {address}"),
        Action::CongestionControl { name } => name.clone(),
        Action::Dscp { dscp } => format!("DSCP {dscp}"),
        Action::Unknown => "?".to_owned(),
    };
    let mut words: Vec<String> = way.plan.iter().map(word).collect();
    if way.origin == "last" || way.origin == "plain" {
        words.push(format!("({})", way.origin));
    }
    words.join(", ")
}
