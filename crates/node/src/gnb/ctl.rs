//! `anabranch ctl cell`, `slices` and `ues` of a gNB: display, once or repeatedly, and changes.

use crate::ctl::Output;
use crate::ctl::client::Client;
use crate::ctl::error::CtlError;
use crate::ctl::sessions::Page;
use crate::ctl::table::{bytes, duration, list, or_dash, rate, table, with_rest};
use crate::ctl::watch::{Rates, Watch};
use crate::runtime::api::{
    BearerLink, Cell, CellChange, CellLink, CellUe, SliceLink, Slices, Status, UeChange, UeList,
};
use anabranch_ran::channel::ChannelConfig;
use anabranch_ran::queue::QueueConfig;
use anabranch_ran::sched::{InterConfig, SliceConfig};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::str::FromStr;

/// Actions on the cell; without one, it is shown.
#[derive(Debug, clap::Subcommand)]
pub enum CellAction {
    /// Change the schedulers, until the next reload or restart.
    #[command(after_help = "\
Examples:
  anabranch ctl cell set --scheduler gps_packing
  anabranch ctl cell set --uplink-scheduler fixed \\
      --scheduler 'algorithm=\"eqp_exact\", quantum_limit_rbs=50'")]
    Set {
        /// Downlink scheduler: a name, or keys as in TOML.
        #[arg(long, value_name = "SCHEDULER", required_unless_present = "uplink_scheduler")]
        scheduler: Option<Written<InterConfig>>,
        /// Uplink scheduler: a name, or keys as in TOML.
        #[arg(long, value_name = "SCHEDULER")]
        uplink_scheduler: Option<Written<InterConfig>>,
    },
}

/// Actions on slices; without one, they are listed.
#[derive(Debug, clap::Subcommand)]
pub enum SliceAction {
    /// Change shares atomically from the next slot on, until the next reload or restart.
    #[command(after_help = "Example:\n  anabranch ctl slices set voice=25 default=75")]
    Set {
        /// Slice and its percentage of the RBs; slices that are not named keep their shares.
        #[arg(required = true, value_name = "SLICE=PERCENT")]
        shares: Vec<Share>,
    },
}

/// Actions on UEs; without one, they are listed.
#[derive(Debug, clap::Subcommand)]
pub enum UeAction {
    /// Show one UE with its bearers and QoS flows.
    #[command(after_help = "Example:\n  anabranch ctl ues show phone")]
    Show {
        /// Name of the UE.
        ue: String,
    },
    /// Change the slice, channel or queue of a UE, until the next reload or restart.
    #[command(after_help = "\
Examples:
  anabranch ctl ues set phone --slice voice --queue e5g_bdp
  anabranch ctl ues set phone --channel 'model=\"train\", seed=3'
  anabranch ctl ues set phone --drb 1 \\
      --queue 'algorithm=\"codel\", target_us=5000'")]
    Set {
        /// Name of the UE.
        ue: String,
        #[command(flatten)]
        change: Box<Change>,
    },
}

/// Changes to a UE.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = true)]
pub struct Change {
    /// New slice.
    #[arg(long, value_name = "SLICE")]
    slice: Option<String>,
    /// Downlink channel, keys as in TOML; the path of a trace is on the gNB's machine, and the trace starts now.
    #[arg(long, value_name = "KEYS")]
    channel: Option<Written<ChannelConfig>>,
    /// Uplink channel, keys as in TOML.
    #[arg(long, value_name = "KEYS")]
    uplink_channel: Option<Written<ChannelConfig>>,
    /// Downlink queue discipline: a name, or keys as in TOML.
    #[arg(long, value_name = "QUEUE")]
    queue: Option<Written<QueueConfig>>,
    /// Uplink queue discipline: a name, or keys as in TOML.
    #[arg(long, value_name = "QUEUE")]
    uplink_queue: Option<Written<QueueConfig>>,
    /// Bearer to which the queue discipline applies; default: all.
    #[arg(long, value_name = "NUMBER")]
    drb: Option<u8>,
}

/// A slice and its share of the RBs, percent.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    slice: String,
    percent: f64,
}

impl FromStr for Share {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\": write SLICE=PERCENT, as in voice=25");
        let (slice, percent) = text.rsplit_once('=').ok_or_else(wrong)?;
        let percent: f64 = percent.trim_end_matches('%').parse().map_err(|_| wrong())?;
        if slice.is_empty() {
            return Err(wrong());
        }
        if !(0.0..=100.0).contains(&percent) {
            return Err(format!("{}; PERCENT must be a number of 0 to 100", wrong()));
        }
        Ok(Self { slice: slice.to_owned(), percent })
    }
}

/// A value in the syntax of the configuration file: a name, or the keys of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Written<T>(pub(crate) T);

impl<T: DeserializeOwned> FromStr for Written<T> {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let value = if text.contains('=') {
            let line = format!("v = {{ {} }}", text.trim().trim_matches(['{', '}', ',']));
            let mut table: toml::Table = line.parse().map_err(|_| {
                format!("\"{text}\": write a name, or KEY=VALUE, KEY=VALUE, ... with strings in quotes")
            })?;
            let value = table.remove("v").unwrap_or(toml::Value::Boolean(false));
            // JSON cannot represent non-finite numbers.
            let keys = value.as_table().into_iter().flatten();
            let strange = |value: &toml::Value| value.as_float().is_some_and(|number| !number.is_finite());
            if let Some((key, value)) = keys.into_iter().find(|(_, value)| strange(value)) {
                return Err(format!("{key} = {value}: must be a finite number"));
            }
            value
        } else {
            toml::Value::String(text.to_owned())
        };
        value.try_into().map(Self).map_err(|e: toml::de::Error| e.message().to_owned())
    }
}

/// Shows or changes the cell.
pub async fn cell(
    client: &Client,
    action: Option<&CellAction>,
    watch: &Watch,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    let path = ["v1", "cell"];
    if let Some(CellAction::Set { scheduler, uplink_scheduler }) = action {
        let change = CellChange {
            scheduler: scheduler.clone().map(|s| s.0),
            uplink_scheduler: uplink_scheduler.clone().map(|s| s.0),
        };
        let cell: Cell = client.send_json(Method::PUT, &path, &change).await?;
        return output.show(&cell, || cell_text(&cell, None, None));
    }
    let live = watch.repeats();
    let show = async |output: &mut Output<'_>, rates: &mut Rates| {
        let cell: Cell = client.get(&path, &[]).await?;
        if live && output.json {
            return output.line(&cell);
        }
        let status: Status = client.get(&["v1", "status"], &[]).await?;
        rates.begin();
        output.show(&cell, || cell_text(&cell, Some(&status), live.then_some(rates)))
    };
    watch.repeat(output, Rates::default(), show).await
}

/// Shows the slices or changes their shares.
pub async fn slices(
    client: &Client,
    action: Option<&SliceAction>,
    watch: &Watch,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    let path = ["v1", "slices"];
    if let Some(SliceAction::Set { shares }) = action {
        let mut now: Slices = client.get(&path, &[]).await?;
        for Share { slice, percent } in shares {
            let names: Vec<String> = now.slices.iter().map(|s| s.name.clone()).collect();
            let Some(found) = now.slices.iter_mut().find(|s| s.name == *slice) else {
                let names = names.join(", ");
                return Err(CtlError::Usage(format!("there is no slice \"{slice}\"; there are: {names}")));
            };
            found.share_percent = *percent;
        }
        #[derive(Serialize)]
        struct NewSlices {
            slices: Vec<SliceConfig>,
        }
        let new = NewSlices { slices: now.slices };
        let slices: Slices = client.send_json(Method::PUT, &path, &new).await?;
        return output.show(&slices, || slices_text(&slices, None));
    }
    let live = watch.repeats();
    let show = async |output: &mut Output<'_>, rates: &mut Rates| {
        let slices: Slices = client.get(&path, &[]).await?;
        if live && output.json {
            return output.line(&slices);
        }
        rates.begin();
        output.show(&slices, || slices_text(&slices, live.then_some(rates)))
    };
    watch.repeat(output, Rates::default(), show).await
}

/// Lists, shows or changes UEs.
pub async fn ues(
    client: &Client,
    action: Option<&UeAction>,
    page: &Page,
    watch: &Watch,
    output: &mut Output<'_>,
) -> Result<(), CtlError> {
    match action {
        None => {
            let live = watch.repeats();
            let show = async |output: &mut Output<'_>, rates: &mut Rates| {
                let ues: UeList = client.get(&["v1", "ues"], &page.query()).await?;
                if live && output.json {
                    return output.line(&ues);
                }
                rates.begin();
                output.show(&ues, || ues_text(&ues, live.then_some(rates)))
            };
            watch.repeat(output, Rates::default(), show).await
        }
        Some(UeAction::Show { ue }) => {
            let ue: CellUe = client.get(&["v1", "ues", ue], &[]).await?;
            output.show(&ue, || ue_text(&ue))
        }
        Some(UeAction::Set { ue, change }) => {
            let Change { slice, channel, uplink_channel, queue, uplink_queue, drb } = Change::clone(change);
            let change = UeChange {
                slice,
                channel: channel.map(|c| c.0),
                uplink_channel: uplink_channel.map(|c| c.0),
                drb,
                queue: queue.map(|q| q.0),
                uplink_queue: uplink_queue.map(|q| q.0),
            };
            let ue: CellUe = client.send_json(Method::PUT, &["v1", "ues", ue], &change).await?;
            output.show(&ue, || ue_text(&ue))
        }
    }
}

fn cell_text(cell: &Cell, status: Option<&Status>, mut rates: Option<&mut Rates>) -> String {
    let ticks = &cell.ticks;
    let late = format!(
        "p50 {:.0} µs, p99 {:.0} µs, max {:.0} µs; {} of {} slots a slot late",
        ticks.p50_us, ticks.p99_us, ticks.max_us, ticks.late, ticks.count
    );
    let mut rows = vec![
        ("name", cell.name.clone()),
        ("carrier", format!("{}, {} RBs, slots of {} µs", cell.rat, cell.rbs, cell.slot_us)),
        ("n3", cell.n3.clone()),
        ("slices, UEs", format!("{}, {}", cell.slices, cell.ues)),
        ("downlink by", cell.scheduler.algorithm().to_string()),
        ("uplink by", cell.uplink_scheduler.algorithm().to_string()),
        ("lateness", late),
    ];
    if let Some(status) = status {
        let share = ticks.processor_ms / 10.0 / (status.uptime_s.max(1)) as f64;
        rows.push(("processor", format!("{share:.1} % of one, since the start")));
        rows.push(("up for", duration(status.uptime_s)));
    }
    let mut text = list(&rows);
    let mut columns = vec![
        "direction",
        ">packets",
        ">bytes",
        ">RBs used",
        ">again",
        ">NACKs",
        ">lost",
        ">padding",
        ">for nobody",
        ">missed",
    ];
    if rates.is_some() {
        columns.push(">rate");
    }
    let rows = [("downlink", &cell.downlink), ("uplink", &cell.uplink)].map(|(name, link)| {
        let mut cells = link_cells(name, link);
        if let Some(rates) = rates.as_deref_mut() {
            cells.push(or_dash(rates.bps(name.to_owned(), link.delivered_bytes).map(rate)));
        }
        cells
    });
    text.push('\n');
    text.push_str(&table(&columns, rows));
    text
}

fn link_cells(name: &str, link: &CellLink) -> Vec<String> {
    let percent = |part: u64, of: u64| {
        if of == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / of as f64) }
    };
    vec![
        name.to_owned(),
        link.delivered_packets.to_string(),
        bytes(link.delivered_bytes),
        percent(link.used_rbs, link.rbs),
        percent(link.retx_rbs, link.rbs),
        link.nacks.to_string(),
        link.lost_blocks.to_string(),
        percent(link.padding_bytes, link.block_bytes),
        link.unroutable_packets.to_string(),
        link.missed_slots.to_string(),
    ]
}

fn slices_text(slices: &Slices, mut rates: Option<&mut Rates>) -> String {
    let live = rates.is_some();
    let mut columns = vec!["slice", ">share", "intra", ">UEs"];
    for way in ["down", "up"] {
        columns.extend([way, ">bytes", ">wait p50", ">p99", ">owed"]);
        if live {
            columns.push(">rate");
        }
    }
    let rows = slices.slices.iter().zip(&slices.uses).map(|(slice, uses)| {
        let intra = serde_json::to_value(slice.intra).ok().and_then(|v| v.as_str().map(str::to_owned));
        let mut cells = vec![
            slice.name.clone(),
            format!("{} %", slice.share_percent),
            or_dash(intra),
            uses.ues.to_string(),
        ];
        for (way, link) in [("down", &uses.downlink), ("up", &uses.uplink)] {
            let SliceLink { bytes: sum, wait_p50_ms, wait_p99_ms, balance_rbs, .. } = link;
            cells.extend([
                String::new(),
                bytes(*sum),
                format!("{wait_p50_ms:.2} ms"),
                format!("{wait_p99_ms:.2} ms"),
            ]);
            cells.push(or_dash(balance_rbs.map(|rbs| format!("{rbs} RBs"))));
            if let Some(rates) = rates.as_deref_mut() {
                cells.push(or_dash(rates.bps(format!("{way} {}", slice.name), *sum).map(rate)));
            }
        }
        cells
    });
    table(&columns, rows.collect::<Vec<_>>())
}

fn ues_text(ues: &UeList, mut rates: Option<&mut Rates>) -> String {
    let live = rates.is_some();
    let mut columns =
        vec!["ue", "slice", "device", ">MCS", ">up", ">down bytes", ">buffer", ">drops", ">up bytes"];
    if live {
        columns.extend([">down rate", ">up rate"]);
    }
    let rows = ues.ues.iter().map(|ue| {
        let sum = |of: fn(&BearerLink) -> u64, up: bool| -> u64 {
            ue.bearers.iter().map(|b| of(if up { &b.uplink } else { &b.downlink })).sum()
        };
        let (down, up) = (sum(|b| b.delivered_bytes, false), sum(|b| b.delivered_bytes, true));
        let mcs = |mcs: Option<u8>| mcs.map_or_else(|| "outage".to_owned(), |mcs| mcs.to_string());
        let mut cells = vec![
            ue.name.clone(),
            ue.slice.clone(),
            ue.device.clone(),
            mcs(ue.downlink_mcs),
            mcs(ue.uplink_mcs),
            bytes(down),
            bytes(sum(|b| b.buffer_bytes, false)),
            sum(|b| b.full_drops + b.aqm_drops, false).to_string(),
            bytes(up),
        ];
        if let Some(rates) = rates.as_deref_mut() {
            cells.push(or_dash(rates.bps(format!("down {}", ue.name), down).map(rate)));
            cells.push(or_dash(rates.bps(format!("up {}", ue.name), up).map(rate)));
        }
        cells
    });
    with_rest(table(&columns, rows.collect::<Vec<_>>()), ues.ues.len(), ues.total)
}

fn ue_text(ue: &CellUe) -> String {
    let json = |channel: &ChannelConfig| serde_json::to_string(channel).unwrap_or_default();
    let mcs = |mcs: Option<u8>| mcs.map_or_else(|| "outage".to_owned(), |mcs| format!("MCS {mcs}"));
    let mut text = list(&[
        ("ue", ue.name.clone()),
        ("slice", ue.slice.clone()),
        ("device", ue.device.clone()),
        ("addresses", ue.addresses.join(", ")),
        ("downlink", format!("{}, {}", mcs(ue.downlink_mcs), json(&ue.channel))),
        ("uplink", format!("{}, {}", mcs(ue.uplink_mcs), json(&ue.uplink_channel))),
    ]);
    let columns = [
        "bearer",
        "direction",
        "rlc",
        "queue",
        ">packets",
        ">bytes",
        ">buffer",
        ">most",
        ">full",
        ">aqm",
        ">CE",
    ];
    let rows = ue.bearers.iter().flat_map(|bearer| {
        [("downlink", &bearer.downlink), ("uplink", &bearer.uplink)].map(|(way, link)| {
            vec![
                bearer.drb.to_string(),
                way.to_owned(),
                bearer.rlc.clone(),
                link.queue.algorithm().to_string(),
                link.delivered_packets.to_string(),
                bytes(link.delivered_bytes),
                bytes(link.buffer_bytes),
                bytes(link.buffer_max_bytes),
                link.full_drops.to_string(),
                link.aqm_drops.to_string(),
                link.ce_marks.to_string(),
            ]
        })
    });
    text.push('\n');
    text.push_str(&table(&columns, rows.collect::<Vec<_>>()));
    let columns =
        ["qfi", "direction", ">packets", ">bytes", ">waiting", ">dropped", ">SDAP wait mean", ">max"];
    let rows = ue.flows.iter().map(|flow| {
        vec![
            flow.qfi.to_string(),
            if flow.downlink { "downlink" } else { "uplink" }.to_owned(),
            flow.packets.to_string(),
            bytes(flow.bytes),
            flow.waiting_packets.to_string(),
            flow.full_drops.to_string(),
            format!("{:.2} ms", flow.wait_mean_ms),
            format!("{:.2} ms", flow.wait_max_ms),
        ]
    });
    text.push('\n');
    text.push_str(&table(&columns, rows.collect::<Vec<_>>()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_queues_and_channels_are_read() {
        let share: Share = "voice=25".parse().unwrap();
        assert_eq!((share.slice.as_str(), share.percent), ("voice", 25.0));
        for wrong in ["voice", "=3", "voice=x", "voice=101", "voice=-1", "voice=nan"] {
            assert!(wrong.parse::<Share>().unwrap_err().contains("SLICE=PERCENT"), "{wrong}");
        }
        let queue: Written<QueueConfig> = "e5g_bdp".parse().unwrap();
        assert_eq!(queue.0.algorithm().name(), "e5g_bdp");
        let queue: Written<QueueConfig> = "algorithm=\"codel\", target_us=4000".parse().unwrap();
        assert_eq!(queue.0.algorithm().name(), "codel");
        let channel: Written<ChannelConfig> = "model=\"constant\", mcs=5".parse().unwrap();
        assert_eq!(channel.0, ChannelConfig::mcs(5));
        let why = "codl".parse::<Written<QueueConfig>>().unwrap_err();
        assert!(why.contains("did you mean \"codel\"?"), "{why}");
        assert!("model=constant".parse::<Written<ChannelConfig>>().unwrap_err().contains("quotes"));
        let why = "model=\"train\", start_s=nan".parse::<Written<ChannelConfig>>().unwrap_err();
        assert_eq!(why, "start_s = nan: must be a finite number");
        assert!("voice=nan".parse::<Share>().unwrap_err().contains("0 to 100"));
    }
}
