//! `anabranch ctl tcp-lane`: the TCP lane of a UE or UPF, and its flows.

use crate::ctl::Output;
use crate::ctl::client::Client;
use crate::ctl::error::CtlError;
use crate::ctl::sessions::Page;
use crate::ctl::table::{bytes, counted, list, or_dash, table, with_rest};
use crate::runtime::api::{TcpLane, TcpLaneFlows};

/// What to show; by default the lane.
#[derive(Debug, clap::Subcommand)]
pub enum TcpLaneAction {
    /// List flows, oldest first: rule, carrier, subflows, bytes.
    #[command(after_help = "Example:\n  anabranch ctl tcp-lane flows --limit 1000")]
    Flows {
        #[command(flatten)]
        page: Page,
    },
}

/// Shows the lane or its flows.
pub async fn tcp_lane(
    client: &Client,
    action: Option<&TcpLaneAction>,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    if let Some(TcpLaneAction::Flows { page }) = action {
        let flows: TcpLaneFlows = client.get(&["v1", "tcp-lane", "flows"], &page.query()).await?;
        return output.show(&flows, || flows_text(&flows));
    }
    let lane: TcpLane = client.get(&["v1", "tcp-lane"], &[]).await?;
    output.show(&lane, || lane_text(&lane))
}

fn lane_text(lane: &TcpLane) -> String {
    let state = match &lane.why {
        Some(why) => format!("{}: {why}", lane.state),
        None => lane.state.clone(),
    };
    let left: Vec<String> = lane.left.iter().map(|left| format!("{}: {}", left.access, left.why)).collect();
    let mut text = list(&[
        ("TCP lane", state),
        ("flows", format!("{} of {}", lane.flows, lane.max_flows)),
        ("by packets", counted(&lane.fallbacks)),
        ("refused", counted(&lane.refused)),
        ("resets", lane.resets.to_string()),
        (
            "memory",
            format!(
                "{}, {} of it waiting; {} limited",
                bytes(lane.held_bytes),
                bytes(lane.waiting_bytes),
                lane.limited
            ),
        ),
        ("without subflows", or_dash((!left.is_empty()).then(|| left.join("; ")))),
    ]);
    let rows = lane
        .carried
        .iter()
        .map(|c| vec![c.carrier.clone(), c.flows.to_string(), bytes(c.up_bytes), bytes(c.down_bytes)]);
    text.push('\n');
    text.push_str(&table(&["carrier", ">flows", ">up", ">down"], rows.collect::<Vec<_>>()));
    text
}

fn flows_text(flows: &TcpLaneFlows) -> String {
    let columns = ["client", "server", "rule", "carrier", ">subflows", ">up", ">down", ">age"];
    let rows = flows.flows.iter().map(|flow| {
        vec![
            flow.client.clone(),
            flow.server.clone(),
            or_dash(Some(flow.rule.clone()).filter(|rule| !rule.is_empty())),
            flow.carrier.clone().unwrap_or_else(|| "connecting".to_owned()),
            flow.subflows.to_string(),
            bytes(flow.up_bytes),
            bytes(flow.down_bytes),
            format!("{:.1} s", flow.age_s),
        ]
    });
    with_rest(table(&columns, rows.collect::<Vec<_>>()), flows.flows.len(), flows.total)
}
