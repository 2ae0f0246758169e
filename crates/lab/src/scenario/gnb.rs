//! Cells in a scenario file, and their conversion to the configuration of `anabranch_ran`.

use super::schema::{choice, table};
use anabranch_element::ioam::DEFAULT_NAMESPACE;
use anabranch_kern::file::read_text;
use anabranch_ran::amc::Amc;
use anabranch_ran::channel::ChannelConfig;
use anabranch_ran::gnb::{
    BearerConfig, Gnb as Cell, GnbConfig, GnbError, IoamConfig, PacketEvents, QosRule, TelemetryConfig,
    UeConfig,
};
use anabranch_ran::mac::{ControlLoad, HarqConfig};
pub use anabranch_ran::queue::Algorithm as Queue;
use anabranch_ran::rlc::{AmConfig, RlcConfig, UmConfig};
pub use anabranch_ran::sched::{InterAlgorithm as Scheduler, IntraKind as Intra};
use anabranch_ran::sched::{InterConfig, SliceConfig};
use anabranch_ran::sdap::{DrbConfig, FlowConfig, SchedulerKind, SdapConfig};
use anabranch_rules::Filter;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

choice! {
    /// Radio access technology.
    pub enum Rat {
        /// LTE, FDD: TTIs of 1 ms, transport blocks according to TS 36.213.
        Lte = "lte",
        /// NR: slots by numerology, FDD or TDD, transport blocks according to TS 38.214.
        Nr = "nr",
    }
}

choice! {
    /// RLC mode.
    pub enum Rlc {
        /// Unacknowledged.
        Um = "um",
        /// Acknowledged.
        Am = "am",
    }
}

choice! {
    /// Scheduling of the QoS flows of a bearer in SDAP.
    pub enum SdapOrder {
        /// Lowest `priority` first.
        Priority = "priority",
        /// Deficit round robin by `quantum_bytes`.
        Drr = "drr",
        /// Earliest deadline first, by `delay_budget_ms`.
        Edf = "edf",
    }
}

choice! {
    /// Source of a channel.
    pub enum ChannelModel {
        /// Constant quality.
        Constant = "constant",
        /// Rows `second,cqi`, or the CSV of the Irish LTE and 5G data sets.
        Trace = "trace",
        /// A mahimahi trace.
        Mahimahi = "mahimahi",
        /// Generated: a pedestrian.
        Pedestrian = "pedestrian",
        /// Generated: a train.
        Train = "train",
    }
}

table! {
    /// A cell: gNB and radio channel, used as an access in place of a link. UEs name it as the `link` of an access.
    /// `via = "direct:<access>"` is the cell alone, without a tunnel over it. In namespaces it is `anabranch gnb`, in
    /// real time.
    pub struct Gnb {
        /// Radio access technology.
        rat: Rat = Rat::Lte;
        /// Number of resource blocks: 1 to 110 for LTE, 1 to 275 for NR.
        rbs: u16 = 25, range(0.0, 65_535.0);
        /// Further keys of the carrier: `rbg_rbs`; for NR also `numerology` (0 to 4), `mcs_table`, `layers`,
        /// `control_symbols`, `dmrs_res`, `overhead_res`, `tdd = { pattern = "DDDSU" }`.
        radio: toml::Table = toml::Table::new();
        /// Scheduler that divides the RBs among slices.
        scheduler: Scheduler = Scheduler::Fixed;
        /// Parameters of the scheduler: `quantum_limit_rbs` and `idle` (`strict` or `idle_reset`) of EQP,
        /// `lag_limit_rbs` of gps_packing.
        scheduler_set: toml::Table = toml::Table::new();
        /// Scheduler that divides the uplink RBs among slices.
        uplink_scheduler: Scheduler = Scheduler::Drr;
        /// Slices; if none is given, there is one, `default`, with all RBs.
        slices: Vec<Slice> = Vec::new();
        /// Queue discipline of the downlink.
        queue: Queue = Queue::Vanilla;
        /// Parameters of the queue discipline, such as `target_us` of CoDel; see docs/ran-limiter.md.
        queue_set: toml::Table = toml::Table::new();
        /// Queue discipline of the uplink, in the UE.
        uplink_queue: Queue = Queue::Vanilla;
        /// RLC mode.
        rlc: Rlc = Rlc::Um;
        /// Capacity of an RLC buffer in bytes: OAI's LTE has 1 MB, OAI's NR 100 MB, srsRAN 6.17 MB, ns-3 10 kB.
        rlc_bytes: u64 = 1_000_000, range(1.0, 1e10);
        /// Capacity of an RLC buffer in packets.
        rlc_packets: u64 = 15_625, range(1.0, 1e8);
        /// QoS flows; if none is given, there is one, 9, for all traffic.
        qos: Vec<Qos> = Vec::new();
        /// Scheduling of the QoS flows of a bearer.
        sdap: SdapOrder = SdapOrder::Priority;
        /// Interval at which SDAP polls its limiters, microseconds.
        poll_us: u32 = 200, range(1.0, 1e6);
        /// Time of the first poll in the TTI, microseconds.
        poll_phase_us: u32 = 0, range(0.0, 1e6);
        /// Whether limiters receive a forecast of the next MAC allocation.
        forecast: bool = true;
        /// Share of transport blocks that are not decoded at the first transmission, percent.
        bler_percent: f64 = 0.0, range(0.0, 100.0);
        /// Share of retransmissions that are not decoded either, percent.
        bler_retx_percent: f64 = 1.0, range(0.0, 100.0);
        /// Delay of a retransmission, milliseconds; default: 8 slots.
        harq_delay_ms: Option<f64> = None, range(0.001, 1000.0);
        /// Number of RBs without user data in every `control_every`-th downlink slot.
        control_rbs: u16 = 0, range(0.0, 275.0);
        /// Interval in slots for `control_rbs`.
        control_every: u32 = 1, range(1.0, 1e6);
        /// Identifier of the IOAM node that fills traces in packets through this cell, in both directions; without it,
        /// traces are not filled.
        ioam_node: Option<u32> = None, range(1.0, 16_777_214.0);
        /// Number of slots from a backlog at the UE to the grant for it.
        grant_delay_slots: u8 = 4, range(0.0, 64.0);
        /// Channel of every UE without its own.
        channel: Channel = Channel::default();
        /// Uplink channel of every UE without its own; default: the downlink channel of each UE.
        uplink_channel: Option<Channel> = None;
        /// Largest packet that limiters expect, bytes.
        mtu_bytes: u32 = 1500, range(576.0, 9000.0);
        /// Settings of individual UEs.
        ue: BTreeMap<String, GnbUe> = BTreeMap::new();
    }
}

table! {
    /// A slice of a cell.
    pub struct Slice {
        /// Name.
        name: String = String::new(), required();
        /// Share of the RBs, percent; the sum over all slices is at most 100.
        share_percent: f64 = 100.0, range(0.0, 100.0);
        /// Scheduler for the UEs of the slice.
        intra: Intra = Intra::Rr;
        /// rrm_policy: RBs reserved for the slice even if unused, percent.
        dedicated_percent: f64 = 0.0, range(0.0, 100.0);
        /// rrm_policy: RBs that the slice gets before others, percent; default: its share.
        min_percent: Option<f64> = None, range(0.0, 100.0);
        /// rrm_policy: share of all RBs that the slice never exceeds over time, percent; default: 100.
        max_percent: Option<f64> = None, range(0.0, 100.0);
        /// static_priority: priority of the slice; lower values are served first.
        priority: u8 = 0, range(0.0, 255.0);
    }
}

table! {
    /// A QoS flow, present in every UE of a cell.
    pub struct Qos {
        /// QoS flow identifier; `qfi<qfi>` in metrics.
        qfi: u8 = 9, range(0.0, 63.0), required();
        /// Packets of this flow; the first flow that matches applies. Default: all packets that match no other flow.
        filter: Option<Filter> = None;
        /// Data radio bearer of the flow.
        drb: u8 = 1, range(1.0, 32.0);
        /// Priority level; lower values are served first.
        priority: u8 = 90, range(1.0, 127.0);
        /// Packet delay budget, milliseconds: the deadline of `edf`.
        delay_budget_ms: f64 = 300.0, range(0.001, 4000.0);
        /// Bytes per round of `drr`.
        quantum_bytes: u32 = 1500, range(1.0, 1e6);
    }
}

table! {
    /// Settings of one UE of a cell.
    pub struct GnbUe {
        /// Slice of the UE; default: the first.
        slice: Option<String> = None;
        /// Downlink queue discipline; default: that of the cell.
        queue: Option<Queue> = None;
        /// Channel of the UE; default: that of the cell.
        channel: Option<Channel> = None;
        /// Uplink channel of the UE; default: `uplink_channel` of the cell.
        uplink_channel: Option<Channel> = None;
        /// Priority for `intra = "priority"`; lower values are served first.
        priority: u8 = 0, range(0.0, 255.0);
    }
}

table! {
    /// Quality of the radio channel over time.
    tag "model"
    pub struct Channel {
        /// Source of the channel.
        model: ChannelModel = ChannelModel::Constant;
        /// Modulation and coding scheme, 0 to 28 for LTE; without `mcs` and `cqi`, the channel has CQI 15.
        mcs: Option<u8> = None, range(0.0, 255.0), only(&["constant"]);
        /// Channel quality indicator.
        cqi: Option<u8> = None, range(0.0, 255.0), only(&["constant"]);
        /// Path of the trace, relative to the scenario file.
        file: String = String::new(), required(), only(&["trace", "mahimahi"]);
        /// Averaging interval of the rate, milliseconds.
        window_ms: u32 = 100, range(10.0, 60_000.0), only(&["mahimahi"]);
        /// Seed of the generated trace; default: a different one in each run.
        seed: Option<u64> = None, only(&["pedestrian", "train"]);
        /// Period after which a generated trace repeats, seconds.
        length_s: u32 = 60, range(1.0, 86_400.0), only(&["pedestrian", "train"]);
        /// Start time of the trace, seconds; until then, its first value applies.
        start_s: f64 = 0.0, range(0.0, 86_400.0), only(&["trace", "mahimahi", "pedestrian", "train"]);
    }
}

impl Channel {
    fn config(&self) -> ChannelConfig {
        let (file, start_s) = (self.file.clone(), self.start_s);
        match self.model {
            ChannelModel::Constant if self.mcs.is_none() && self.cqi.is_none() => {
                ChannelConfig::Constant { mcs: None, cqi: Some(15) }
            }
            ChannelModel::Constant => ChannelConfig::Constant { mcs: self.mcs, cqi: self.cqi },
            ChannelModel::Trace => ChannelConfig::Trace { file, start_s },
            ChannelModel::Mahimahi => ChannelConfig::Mahimahi { file, window_ms: self.window_ms, start_s },
            ChannelModel::Pedestrian => {
                ChannelConfig::Pedestrian { seed: self.seed, length_s: self.length_s, start_s }
            }
            ChannelModel::Train => ChannelConfig::Train { seed: self.seed, length_s: self.length_s, start_s },
        }
    }
}

/// A name with its parameters, in the form of `anabranch_ran`.
fn named<T: DeserializeOwned>(tag: &str, name: &str, set: &toml::Table, what: &str) -> Result<T, String> {
    let mut table = set.clone();
    if table.contains_key(tag) {
        return Err(format!("{what}: `{tag}` stands beside it, not in it"));
    }
    table.insert(tag.to_owned(), toml::Value::String(name.to_owned()));
    toml::Value::Table(table).try_into().map_err(|e: toml::de::Error| format!("{what}: {}", e.message()))
}

impl Gnb {
    /// Paths of its traces, to be resolved relative to the scenario's folder.
    pub fn files(&mut self) -> impl Iterator<Item = &mut String> {
        let own = self.ue.values_mut().flat_map(|ue| ue.channel.iter_mut().chain(&mut ue.uplink_channel));
        let cell = std::iter::once(&mut self.channel).chain(&mut self.uplink_channel);
        cell.chain(own).map(|c| &mut c.file).filter(|file| !file.is_empty())
    }

    /// Its slices.
    #[must_use]
    pub fn slices(&self) -> Vec<SliceConfig> {
        if self.slices.is_empty() {
            return vec![SliceConfig::new("default", 100.0)];
        }
        let slice = |s: &Slice| SliceConfig {
            name: s.name.clone(),
            share_percent: s.share_percent,
            intra: s.intra,
            dedicated_percent: s.dedicated_percent,
            min_percent: s.min_percent,
            max_percent: s.max_percent,
            priority: s.priority,
        };
        self.slices.iter().map(slice).collect()
    }

    /// Maximum downlink rate, Mbit/s.
    #[must_use]
    pub fn peak_mbps(&self) -> Option<f64> {
        let config = self.config(0, &[]).ok()?;
        let amc = Amc::new(&config.radio).ok()?;
        let mcs = match self.channel.model {
            ChannelModel::Constant => self.channel.mcs.unwrap_or(amc.max_mcs()),
            _ => amc.max_mcs(),
        };
        let bytes = amc.full().bytes(mcs, amc.rbs()).ok()?;
        Some(f64::from(bytes) * 8e-6 / amc.slot().as_secs_f64())
    }

    /// QoS flow identifiers of its UEs.
    #[must_use]
    pub fn qfis(&self) -> Vec<u8> {
        if self.qos.is_empty() { vec![9] } else { self.qos.iter().map(|q| q.qfi).collect() }
    }

    fn sdap(&self) -> SdapConfig {
        let base = SdapConfig {
            scheduler: match self.sdap {
                SdapOrder::Priority => SchedulerKind::Priority,
                SdapOrder::Drr => SchedulerKind::Drr,
                SdapOrder::Edf => SchedulerKind::Edf,
            },
            poll_us: self.poll_us,
            poll_phase_us: self.poll_phase_us,
            ..SdapConfig::default()
        };
        // SDAP holds the packets delayed by limiters: the bounded queue is that of RLC.
        let (limit_bytes, limit_sdus) =
            (self.rlc_bytes, usize::try_from(self.rlc_packets).unwrap_or(usize::MAX));
        if self.qos.is_empty() {
            let flows = vec![FlowConfig { unmapped: true, limit_bytes, limit_sdus, ..FlowConfig::new(9, 1) }];
            return SdapConfig { flows, ..base };
        }
        let flow = |q: &Qos| FlowConfig {
            priority: q.priority,
            quantum_bytes: q.quantum_bytes,
            delay_budget_us: (q.delay_budget_ms * 1e3) as u32,
            unmapped: q.filter.is_none(),
            limit_bytes,
            limit_sdus,
            ..FlowConfig::new(q.qfi, q.drb)
        };
        let mut ids: Vec<u8> = self.qos.iter().map(|q| q.drb).collect();
        ids.sort_unstable();
        ids.dedup();
        let drbs = ids.into_iter().map(|id| DrbConfig { id, header: false }).collect();
        SdapConfig { drbs, flows: self.qos.iter().map(flow).collect(), ..base }
    }

    /// The configuration for `anabranch_ran`, for UEs with these names and addresses.
    ///
    /// # Errors
    /// An unknown parameter of the scheduler, queue or carrier.
    pub fn config(&self, seed: u64, ues: &[(String, Vec<IpAddr>)]) -> Result<GnbConfig, String> {
        let mut radio = self.radio.clone();
        radio.insert("rbs".to_owned(), i64::from(self.rbs).into());
        let scheduler: InterConfig =
            named("algorithm", self.scheduler.name(), &self.scheduler_set, "scheduler_set")?;
        let none = toml::Table::new();
        let slices = self.slices();
        let limit_sdus = usize::try_from(self.rlc_packets).unwrap_or(usize::MAX);
        let default_qfi = self.qos.iter().find(|q| q.filter.is_none()).map_or(9, |q| q.qfi);
        let mut of_ues = Vec::with_capacity(ues.len());
        for (name, addresses) in ues {
            let own = self.ue.get(name).cloned().unwrap_or_default();
            let queue = match own.queue {
                Some(queue) => named("algorithm", queue.name(), &none, "queue")?,
                None => named("algorithm", self.queue.name(), &self.queue_set, "queue_set")?,
            };
            let slice = own.slice.or_else(|| slices.first().map(|s| s.name.clone())).unwrap_or_default();
            let filter = |q: &Qos| q.filter.clone().map(|filter| QosRule { qfi: q.qfi, dscp: None, filter });
            of_ues.push(UeConfig {
                addresses: addresses.clone(),
                uplink_channel: own
                    .uplink_channel
                    .as_ref()
                    .or(self.uplink_channel.as_ref())
                    .map(Channel::config),
                priority: own.priority,
                qos: self.qos.iter().filter_map(filter).collect(),
                default_qfi,
                sdap: self.sdap(),
                bearer: BearerConfig {
                    queue,
                    uplink_queue: Some(named("algorithm", self.uplink_queue.name(), &none, "uplink_queue")?),
                    rlc: match self.rlc {
                        Rlc::Um => RlcConfig::Um(UmConfig::default()),
                        Rlc::Am => RlcConfig::Am(AmConfig::default()),
                    },
                    limit_bytes: self.rlc_bytes,
                    limit_sdus,
                    mtu_bytes: self.mtu_bytes,
                    ..BearerConfig::default()
                },
                ..UeConfig::new(name, slice, own.channel.as_ref().unwrap_or(&self.channel).config())
            });
        }
        let control = ControlLoad { every_slots: self.control_every, offset_slots: 0, rbs: self.control_rbs };
        let mac = anabranch_ran::gnb::MacConfig {
            grant_delay_slots: Some(self.grant_delay_slots),
            control: if self.control_rbs > 0 { vec![control] } else { Vec::new() },
            forecast: Some(self.forecast),
            ..Default::default()
        };
        Ok(GnbConfig {
            seed,
            n3: Default::default(),
            radio: named("rat", self.rat.name(), &radio, "radio")?,
            mac,
            harq: HarqConfig {
                bler: self.bler_percent / 100.0,
                bler_retx: self.bler_retx_percent / 100.0,
                retx_delay_us: self.harq_delay_ms.map(|ms| (ms * 1e3).round() as u32),
                ..HarqConfig::default()
            },
            scheduler,
            uplink_scheduler: Some(named(
                "algorithm",
                self.uplink_scheduler.name(),
                &none,
                "uplink_scheduler",
            )?),
            slices,
            ues: of_ues,
            telemetry: TelemetryConfig { packets: PacketEvents::Downlink, ..TelemetryConfig::default() },
            ioam: self.ioam_node.map(|node_id| IoamConfig { node_id, namespace: DEFAULT_NAMESPACE }),
        })
    }

    /// Builds the cell; reads traces.
    ///
    /// # Errors
    /// Those of [`Gnb::config`] and `anabranch_ran`, and keys without effect.
    pub fn build(&self, seed: u64, ues: &[(String, Vec<IpAddr>)]) -> Result<Cell, String> {
        let config = self.config(seed, ues)?;
        let mut read = |file: &str| read_text(Path::new(file)).map_err(|e| e.to_string());
        let built = Cell::new(&config, &mut read);
        built.and_then(|cell| config.check_effects().map(|()| cell)).map_err(|e: GnbError| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::parse;
    use crate::scenario::walk::Problems;
    use anabranch_ran::channel::ChannelConfig;
    use std::path::Path;

    const CELL: &str = r#"
title = "a cell"
[gnb.cell]
slices = [{ name = "voice", share_percent = 25 }, { name = "rest", share_percent = 75 }]
qos = [{ qfi = 1, priority = 20, filter = { protocol = "udp" } }, { qfi = 9 }]
[gnb.cell.ue.b]
slice = "rest"
[ue.a]
accesses = [{ name = "5g", link = "cell" }]
[ue.b]
accesses = [{ name = "5g", link = "cell" }]
[flow.f]
kind = "bulk_tcp"
ue = "a"
via = "direct:5g"
[[event]]
kind = "share"
name = "more"
at_s = 5
slice = "voice"
share_percent = 25
"#;

    const NAMES: &str = r#"
[[claim]]
id = "one"
max = 9
what = "a metric and a series of the cell"
metric = "gnb.cell.ue.b.qfi9.wait_p95_ms + gnb.cell.rb_percent"
[[plot]]
kind = "time"
title = "t"
series = ["gnb.cell.slice.voice.owed_rbs", "gnb.cell.ue.a.rlc_bytes", "gnb.cell.ue.a.qfi1.wait_ms"]
"#;

    fn check(sets: &[&str]) -> Result<(), String> {
        check_text(CELL, sets)
    }

    fn check_text(text: &str, sets: &[&str]) -> Result<(), String> {
        let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
        let path = Path::new("cell.toml");
        parse(path, text, &sets).map(|_| ()).map_err(|p| Problems::new(path, p).to_string())
    }

    #[test]
    fn its_metrics_and_series_have_names() {
        let text = format!("{CELL}{NAMES}");
        check_text(&text, &[]).unwrap();
        let why = check_text(&text, &["claim.one.metric=gnb.cell.rb_percnt"]).unwrap_err();
        assert!(why.contains("there is no `gnb.cell.rb_percnt`; near: `gnb.cell.rb_percent`"), "{why}");
    }

    #[test]
    fn a_cell_is_read() {
        check(&[]).unwrap();
        check(&["gnb.cell.scheduler=eqp_exact", "gnb.cell.scheduler_set.quantum_limit_rbs=50"]).unwrap();
        check(&["gnb.cell.rat=nr", "gnb.cell.rbs=50", "gnb.cell.radio.numerology=1"]).unwrap();
        check(&["gnb.cell.queue=codel", "gnb.cell.queue_set.target_us=9000", "gnb.cell.rlc=am"]).unwrap();
        check(&["gnb.cell.slices.rest.min_percent=60", "gnb.cell.uplink_scheduler=rrm_policy"]).unwrap();
        check(&["gnb.cell.slices.rest.min_percent=75", "gnb.cell.slices.rest.max_percent=100"]).unwrap();
        check(&["gnb.cell.slices.rest.priority=2", "gnb.cell.scheduler=static_priority"]).unwrap();
        check(&["gnb.cell.ue.b.priority=2", "gnb.cell.slices.rest.intra=priority"]).unwrap();
        check(&["gnb.cell.channel.model=train", "gnb.cell.ue.b.channel.model=pedestrian"]).unwrap();
    }

    #[test]
    fn a_queue_that_no_packet_can_leave_is_reported() {
        let warnings = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
            parse(Path::new("cell.toml"), CELL, &sets).unwrap().cases[0].warnings.clone()
        };
        assert_eq!(warnings(&[]), [""; 0]);
        let said = warnings(&["gnb.cell.channel.mcs=0", "gnb.cell.slices.voice.share_percent=8"]);
        assert_eq!(said.len(), 1, "{said:?}");
        let says = [
            "gnb.cell: ue \"a\": nothing can ever leave its downlink queue: its blocks have at most 4 bytes (2 RBs)",
            "give slice \"voice\" a share_percent of 16 or more",
        ];
        assert!(says.iter().all(|says| said[0].contains(says)), "{said:?}");
        // For both UEs in both directions, because of the carrier.
        let said = warnings(&["gnb.cell.channel.mcs=0", "gnb.cell.rbs=1", "gnb.cell.scheduler=drr"]);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said.iter().all(|line| line.contains("more rbs") && line.ends_with("(and 1 UEs more)")),
            "{said:?}"
        );
    }

    #[test]
    fn packets_that_no_qos_flow_takes_are_reported() {
        let warnings = |qos: &str| {
            let sets = [format!("gnb.cell.qos=[{qos}]")];
            parse(Path::new("cell.toml"), CELL, &sets).unwrap().cases[0].warnings.clone()
        };
        let tcp = r#"filter = { protocol = "tcp" }"#;
        let said = warnings(&format!("{{ qfi = 3, {tcp} }}"));
        let says = "gnb.cell.qos: packets that match no filter are dropped: add a QoS flow without filter";
        assert_eq!(said, [says]);
        assert_eq!(warnings(&format!("{{ qfi = 3, {tcp} }}, {{ qfi = 4 }}")), [""; 0]);
    }

    #[test]
    fn the_uplink_has_a_channel_and_packets_have_any_size() {
        let config = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|s| (*s).to_owned()).collect();
            let scenario = parse(Path::new("cell.toml"), CELL, &sets).unwrap();
            let ues = ["a", "b"].map(|ue| (ue.to_owned(), Vec::new()));
            scenario.cases[0].gnbs["cell"].config(1, &ues).unwrap()
        };
        let up =
            |sets: &[&str]| config(sets).ues.iter().map(|ue| ue.uplink_channel.clone()).collect::<Vec<_>>();
        let mcs = |mcs| Some(ChannelConfig::mcs(mcs));
        assert_eq!(up(&["gnb.cell.channel.mcs=9"]), [None, None]);
        assert_eq!(up(&["gnb.cell.uplink_channel.mcs=4"]), [mcs(4), mcs(4)]);
        let own = ["gnb.cell.uplink_channel.mcs=4", "gnb.cell.ue.b.uplink_channel.mcs=7"];
        assert_eq!(up(&own), [mcs(4), mcs(7)]);
        assert_eq!(config(&["gnb.cell.mtu_bytes=9000"]).ues[0].bearer.mtu_bytes, 9000);
        let cbr = ["flow.f.kind=cbr", "flow.f.packet_bytes=1452"];
        check(&cbr).unwrap();
        let with = |more: &[&'static str]| check(&[&cbr[..1], more].concat());
        with(&["flow.f.packet_bytes=8000"]).unwrap();
        let why = with(&["flow.f.packet_bytes=8000", "backends=[\"netns\"]"]).unwrap_err();
        assert!(
            why.contains("flow.f.packet_bytes: 8000: interfaces of namespaces carry 1452 at most"),
            "{why}"
        );
        let why = with(&["flow.f.packet_bytes=1373", "flow.f.via=atsss"]).unwrap_err();
        assert!(why.contains("flow.f.packet_bytes: 1373: a tunnel carries 1372 at most"), "{why}");
    }

    #[test]
    fn what_cannot_be_is_named_once() {
        // A cell that cannot be built has no metrics; that they are unknown is not a second fault.
        let text = format!("{CELL}{NAMES}\n[metric]\ntwice = \"2 * gnb.cell.rb_percent\"\n");
        for (sets, says) in [
            (&["gnb.cell.rbs=0"][..], "gnb.cell: 0 RBs carry nothing: give the cell 1 to 110 RBs"),
            (&["gnb.cell.rbs=111"], "gnb.cell: 111 RBs are not in the table: LTE has 1 to 110"),
            (
                &["gnb.cell.channel.mcs=29"],
                "MCS 29 is out of range: TS 36.213 Table 7.1.7.2.1-1 has MCS 0 to 28",
            ),
            (&["gnb.cell.channel.cqi=16"], "CQI 16 is out of range: 0 to 15"),
            (&["gnb.cell.slices.rest.share_percent=80"], "all slices sum to 105 %: must be 100 at most"),
            (&["gnb.cell.slices.rest.share_percent=nan"], "share_percent"),
            (
                &["gnb.cell.slices.rest.min_percent=60"],
                "gnb.cell: slice \"rest\": min_percent = 60 has no effect: leave it out, or set the scheduler to rrm_policy",
            ),
            (&["gnb.cell.slices.rest.priority=2"], "or set the scheduler to static_priority"),
            (
                &["gnb.cell.ue.b.priority=2"],
                "gnb.cell: ue \"b\": priority = 2: must be left out: no slice has intra = \"priority\"",
            ),
            (&["gnb.cell.bler_percent=nan"], "gnb.cell.bler_percent: NaN is out of range; valid: 0 to 100"),
            (&["gnb.cell.ue.b.slice=gold"], "ue \"b\": slice = gold: must be the name of a slice"),
            (&["gnb.cell.ue.c.priority=1"], "gnb.cell.ue.c: there is no UE of this cell `c`"),
            (&["gnb.cell.queue=codle"], "\"codle\" is not known; did you mean \"codel\"?"),
            (&["gnb.cell.queue_set.target=3"], "gnb.cell: queue_set: unknown field `target`"),
            (&["gnb.cell.scheduler_set.idle=reset"], "scheduler_set: "),
            (&["gnb.cell.radio.numerology=9"], "gnb.cell: radio: unknown field `numerology`"),
            (&["gnb.cell.channel.model=trace", "gnb.cell.channel.file=no.csv"], "no.csv: "),
            (&["gnb.cell.rat=nr", "gnb.cell.rbs=276"], "276"),
            (&["gnb.cell.rat=nr", "gnb.cell.rbs=0"], "0 RBs carry nothing"),
            (
                &["gnb.cell.slices.rest.share_percent=101"],
                "gnb.cell.slices.rest.share_percent: 101 is out of range; valid: 0 to 100",
            ),
            (
                &["gnb.cell.channel.model=train", "gnb.cell.channel.start_s=nan"],
                "gnb.cell.channel.start_s: NaN is out of range",
            ),
            (
                &["event.more.share_percent=26"],
                "26 % for slice `voice` at 5 s would make the shares of gnb `cell` 101 %: must be 100 at most",
            ),
            (&["event.more.slice=gold"], "event.more.slice: there is no slice `gold`"),
            (
                &["upf.one={}", "upf.two={}", "ue.a.upf=one", "ue.b.upf=two", "backends=[\"netns\"]"],
                "gnb.cell: has UEs of 2 UPFs: in namespaces its N3 ends at one; give each UPF a cell of its own",
            ),
        ] {
            let why = check_text(&text, sets).unwrap_err();
            assert!(why.contains(says), "{sets:?}: {why}");
            assert_eq!(why.lines().count(), 1, "{sets:?}: {why}");
        }
    }

    #[test]
    fn a_trace_that_is_malformed_is_named_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cell.toml");
        for (model, text, says) in [
            ("trace", "second,cqi\n0,7\n1,99\n", "bad.trace:3: CQI \"99\"; CQI is a whole number of 0 to 15"),
            ("trace", "0,7\nNaN,8\n", "bad.trace:2: time NaN s; times are 0 to 30 days"),
            ("trace", "0,7\n0,8\n", "bad.trace:2: 0 s is not later than the row before"),
            ("trace", "zero,7\n", "bad.trace:1: time \"zero\"; write rows"),
            ("trace", "\u{0}\u{1}\u{fffd}", "bad.trace:1: "),
            ("trace", "", "bad.trace: "),
            ("mahimahi", "1\nx\n", "bad.trace:2: \"x\"; write one delivery opportunity"),
            ("mahimahi", "5\n4\n", "earlier than the line before"),
        ] {
            std::fs::write(folder.path().join("bad.trace"), text).unwrap();
            let channel = format!("channel = {{ model = \"{model}\", file = \"bad.trace\" }}\n");
            let text = CELL.replacen("[gnb.cell]\n", &format!("[gnb.cell]\n{channel}"), 1);
            let problems = parse(&path, &text, &[]).map(|_| ()).unwrap_err();
            let why = Problems::new(&path, problems).to_string();
            assert!(why.contains("gnb.cell") && why.contains(says), "{model}: {why}");
            assert_eq!(why.lines().count(), 1, "{why}");
        }
    }
}
