//! `anabranch ctl status` and `anabranch ctl paths`, once or repeatedly.

use super::Output;
use super::client::Client;
use super::error::CtlError;
use super::sessions::Page;
use super::table::{bytes, duration, list, or_dash, rate, table};
use super::watch::{Rates, Watch};
use crate::runtime::api::{Counters, NotUsed, Path, PathList, PathLoad, RuleUse, Rules, Status};
use serde::Serialize;
use std::collections::BTreeMap;

/// Shows the state of the program.
pub async fn status(client: &Client, watch: &Watch, output: &mut Output<'_>) -> Result<(), CtlError> {
    let live = watch.repeats();
    let show = async |output: &mut Output<'_>, rates: &mut Rates| {
        let status: Status = client.get(&["v1", "status"], &[]).await?;
        if live && output.json {
            return output.line(&status);
        }
        rates.begin();
        output.show(&status, || status_text(&status, live.then_some(rates)))
    };
    watch.repeat(output, Rates::default(), show).await
}

/// Shows the paths, with the rules whose traffic they carry.
pub async fn paths(
    client: &Client,
    ue: Option<&str>,
    page: &Page,
    watch: &Watch,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    let live = watch.repeats();
    let show = async |output: &mut Output<'_>, rates: &mut Rates| {
        let list: PathList = match ue {
            Some(ue) => client.get(&["v1", "sessions", ue, "paths"], &[]).await?,
            None => client.get(&["v1", "paths"], &page.query()).await?,
        };
        if output.json && !live {
            return output.show(&list, String::new);
        }
        rates.begin();
        let PathList { paths, uses } = list;
        let rows = paths.into_iter().map(|path| Row::new(path, &uses, rates)).collect::<Vec<_>>();
        if output.json {
            return output.line(&Sample { paths: rows });
        }
        let mut text = paths_text(&rows, live);
        let several = uses.iter().any(|used| used.ue != uses[0].ue);
        if live && !uses.is_empty() && !several {
            text = format!("{text}\n{}", super::rules::show(&Rules { rules: Vec::new(), uses }, None));
        }
        output.to.write_all(text.as_bytes()).map_err(CtlError::from)
    };
    watch.repeat(output, Rates::default(), show).await
}

/// The object that `paths --watch --json` prints per round.
#[derive(Serialize)]
struct Sample {
    paths: Vec<Row>,
}

/// A path, and values derived from consecutive answers.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    path: Path,
    /// Rates in bit/s; absent in the first round.
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_bps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rx_bps: Option<f64>,
    /// `mode (rule)` of each rule whose traffic the path carries.
    carries: Vec<String>,
    /// `rule: reason` of each rule that avoids the path because of the path's condition.
    left_by: Vec<String>,
}

impl Row {
    fn new(path: Path, uses: &[RuleUse], rates: &mut Rates) -> Self {
        let key = |direction: &str| format!("{direction} {} {}", path.id, path.ue);
        let (tx_bps, rx_bps) = (rates.bps(key("tx"), path.tx_bytes), rates.bps(key("rx"), path.rx_bytes));
        let uses = || uses.iter().filter(|used| used.ue == path.ue);
        // A splitting rule uses every path that is up; any other rule uses the path that it names, or the
        // paths that its packets took.
        let splits = |used: &RuleUse| used.definition.as_ref().is_some_and(|rule| rule.steering.splits());
        let here = uses().filter(|used| match &used.access {
            Some(access) => *access == path.access,
            None => path.up && (splits(used) || used.packets.contains_key(&path.access)),
        });
        let carries = here.map(|used| format!("{} ({})", used.mode, used.rule)).collect();
        let wrong = |not: &&NotUsed| not.access == path.access && WRONG.contains(&not.reason.as_str());
        let left = uses().flat_map(|used| used.not_used.iter().map(move |not| (used, not)));
        let left = left.filter(|(_, not)| wrong(not));
        let left_by = left.map(|(used, not)| format!("{}: {}", used.rule, not.why)).collect();
        Self { path, tx_bps, rx_bps, carries, left_by }
    }
}

/// Reasons why a rule avoids a path that are due to the path itself and that its state does not show.
const WRONG: [&str; 7] = ["held", "steady-loss", "loss", "round-trip", "random-loss", "dropping", "too-far"];

fn paths_text(rows: &[Row], live: bool) -> String {
    let several = rows.iter().any(|r| r.path.ue != rows[0].path.ue);
    let mut columns = if several { vec!["ue"] } else { Vec::new() };
    columns.extend(["access", "state", ">RTT ms", ">loss tx %", ">loss rx %"]);
    columns.extend(if live { [">tx rate", ">rx rate"] } else { [">tx", ">rx"] });
    // If packets are fragmented, columns show the fragments and the packets that were never reassembled, per
    // path.
    let cut = rows.iter().any(|r| r.path.tx_fragments + r.path.rx_fragments > 0);
    columns.extend(if cut { &[">MTU", ">cut tx", ">cut rx", ">incomplete"][..] } else { &[">MTU"] });
    columns.extend(["security", "endpoint", "mode (rule)"]);
    table(
        &columns,
        rows.iter().map(|row| {
            let p = &row.path;
            let mut cells = if several { vec![p.ue.clone()] } else { Vec::new() };
            cells.extend([
                p.access.clone(),
                match (&p.why, p.up) {
                    (Some(why), true) => format!("up ({why})"),
                    (None, true) => "up".into(),
                    (Some(why), false) => format!("down: {why}"),
                    (None, false) => "down".into(),
                },
                or_dash(p.rtt_ms.map(|rtt| format!("{rtt:.1}"))),
                format!("{:.1}", p.loss_tx_percent),
                format!("{:.1}", p.loss_rx_percent),
            ]);
            cells.extend(if live {
                [or_dash(row.tx_bps.map(rate)), or_dash(row.rx_bps.map(rate))]
            } else {
                [bytes(p.tx_bytes), bytes(p.rx_bytes)]
            });
            cells.push(or_dash((p.mtu_bytes > 0).then(|| p.mtu_bytes.to_string())));
            if cut {
                cells.extend([p.tx_fragments, p.rx_fragments, p.rx_incomplete].map(|n| n.to_string()));
            }
            let carries = (!row.carries.is_empty()).then(|| row.carries.join(", "));
            cells.extend([p.security.clone(), or_dash(p.endpoint.clone()), or_dash(carries)]);
            cells
        }),
    ) + &loads_text(rows, several)
}

/// The load estimates of the paths in the sending direction, and the rules that avoid a path with their
/// reasons; empty before the first probe.
fn loads_text(rows: &[Row], several: bool) -> String {
    if rows.iter().all(|row| row.path.load.is_none()) {
        return String::new();
    }
    let mut columns = if several { vec!["ue"] } else { Vec::new() };
    columns.extend([
        "sending",
        ">queue ms",
        ">drops at ms",
        ">capacity",
        ">random loss %",
        ">steady loss %",
        ">peer's loss %",
    ]);
    columns.push("left by");
    let cells = rows.iter().map(|row| {
        let p = &row.path;
        let known = |value: fn(&PathLoad) -> Option<String>| or_dash(p.load.as_ref().and_then(value));
        let mut cells = if several { vec![p.ue.clone()] } else { Vec::new() };
        cells.extend([
            p.access.clone(),
            known(|load| Some(format!("{:.1}", load.queue_ms))),
            known(|load| Some(format!("{:.1}", load.drops_at_ms?))),
            known(capacity),
            known(|load| Some(format!("{:.2}", load.random_loss_percent))),
            known(|load| Some(load.steady_loss_percent.to_string())),
            known(|load| Some(format!("{:.2}", load.lasting_loss_rx_percent))),
            or_dash((!row.left_by.is_empty()).then(|| row.left_by.join("; "))),
        ]);
        cells
    });
    format!("\n{}", table(&columns, cells))
}

/// The capacity shown by traffic or, with `~`, the estimate of a measurement while the path was idle.
fn capacity(load: &PathLoad) -> Option<String> {
    match load.capacity_bps {
        Some(bps) => Some(rate(bps as f64)),
        None => Some(format!("~{}", rate(load.estimate_bps? as f64))),
    }
}

fn status_text(status: &Status, rates: Option<&mut Rates>) -> String {
    let drops: Vec<String> =
        status.drops.iter().filter(|(_, n)| **n > 0).map(|(reason, n)| format!("{reason} {n}")).collect();
    let traces: Vec<String> = status.ioam.iter().map(|(what, n)| format!("{what} {n}")).collect();
    let mut rows = vec![
        ("part", status.part.clone()),
        ("name", status.name.clone()),
        ("version", status.version.clone()),
        ("up for", duration(status.uptime_s)),
        ("public key", status.public_key.clone()),
        ("device", format!("{}, MTU {}", status.device, status.mtu_bytes)),
        ("sessions", format!("{} of {} up", status.connected, status.sessions)),
        ("drops", if drops.is_empty() { "none".into() } else { drops.join(", ") }),
        ("workers", status.workers.len().to_string()),
    ];
    rows.extend(status.trouble.iter().map(|(ue, why)| ("trouble", format!("{ue}: {why}"))));
    if !traces.is_empty() {
        rows.push(("traces", traces.join(", ")));
    }
    let mut text = list(&rows);
    text.push('\n');
    text.push_str(&accesses(status, rates));
    text
}

/// The sockets of the accesses, summed over all workers.
fn accesses(status: &Status, mut rates: Option<&mut Rates>) -> String {
    let mut sums: BTreeMap<&str, Counters> = BTreeMap::new();
    for (name, c) in status.workers.iter().flat_map(|w| &w.accesses) {
        let sum = sums.entry(name).or_default();
        sum.rx_bytes += c.rx_bytes;
        sum.tx_bytes += c.tx_bytes;
        sum.rx_datagrams += c.rx_datagrams;
        sum.tx_datagrams += c.tx_datagrams;
        sum.tx_full += c.tx_full;
        sum.tx_errors += c.tx_errors;
    }
    let live = rates.is_some();
    let mut columns =
        vec!["access", ">rx datagrams", ">rx", ">tx datagrams", ">tx", ">socket full", ">errors"];
    if live {
        columns.extend([">rx rate", ">tx rate"]);
    }
    let rows = sums.iter().map(|(name, c)| {
        let mut cells = vec![
            (*name).to_owned(),
            c.rx_datagrams.to_string(),
            bytes(c.rx_bytes),
            c.tx_datagrams.to_string(),
            bytes(c.tx_bytes),
            c.tx_full.to_string(),
            c.tx_errors.to_string(),
        ];
        if let Some(rates) = rates.as_deref_mut() {
            cells.push(or_dash(rates.bps(format!("rx {name}"), c.rx_bytes).map(rate)));
            cells.push(or_dash(rates.bps(format!("tx {name}"), c.tx_bytes).map(rate)));
        }
        cells
    });
    table(&columns, rows.collect::<Vec<_>>())
}
