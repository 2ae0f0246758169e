//! `anabranch ctl int`: paths of a monitor (`anabranch int monitor --api`) hop by hop, once or repeatedly,
//! and its flows.

use super::{IntFlows, IntPaths, flows_table, hops_table};
use crate::ctl::Output;
use crate::ctl::client::Client;
use crate::ctl::error::CtlError;
use crate::ctl::sessions::Page;
use crate::ctl::table::with_rest;
use crate::ctl::watch::Watch;

/// What to show; by default the paths.
#[derive(Debug, clap::Subcommand)]
pub enum IntAction {
    /// List flows: addresses, ports, path, losses; congestion window and RTT if the sender reports them.
    #[command(after_help = "\
Examples:
  anabranch ctl int flows --path 1
  anabranch ctl int flows --json | jq '.flows[].missing'")]
    Flows {
        /// Only flows of the path with this number.
        #[arg(long, value_name = "NUMBER")]
        path: Option<u64>,
        #[command(flatten)]
        page: Page,
    },
}

/// Shows the paths or the flows.
pub async fn int(
    client: &Client,
    action: Option<&IntAction>,
    page: &Page,
    watch: &Watch,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    if let Some(IntAction::Flows { path, page }) = action {
        let mut query = page.query().to_vec();
        query.extend(path.map(|number| ("path", number.to_string())));
        let flows: IntFlows = client.get(&["v1", "int", "flows"], &query).await?;
        return output
            .show(&flows, || or_none(flows_table(&flows.flows), "flows", flows.flows.len(), flows.total));
    }
    let live = watch.repeats();
    let show = async |output: &mut Output<'_>, (): &mut ()| {
        let paths: IntPaths = client.get(&["v1", "int", "paths"], &page.query()).await?;
        if live && output.json {
            return output.line(&paths);
        }
        output.show(&paths, || or_none(hops_table(&paths.paths), "paths", paths.paths.len(), paths.total))
    };
    watch.repeat(output, (), show).await
}

fn or_none(table: String, what: &str, shown: usize, total: u64) -> String {
    if total == 0 { format!("no {what} yet\n") } else { with_rest(table, shown, total) }
}
