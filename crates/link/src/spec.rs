//! Configuration of a link: the same keys in scenario files, and in the files and commands of `anabranch link`.
//!
//! ```toml
//! rate_bps = 60_000_000        # default: unlimited
//! delay_ms = 10.0              # one way
//! jitter_ms = 3.0              # extra delay, uniform in 0 ..= jitter_ms
//! loss = { model = "bernoulli", probability = 0.01 }
//! queue_packets = 200          # tail drop; queue_bytes bounds bytes as well
//! ```

use super::ioam::{IoamNode, Strip};
use super::link::{LinkChange, LinkConfig, QueueLimit};
use super::loss::LossModel;
use super::rate::Rate;
use super::trace::{Trace, TraceError};
use anabranch_element::ioam::DEFAULT_NAMESPACE;
use anabranch_element::time::Duration;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Configuration of one direction of a link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSpec {
    /// Rate in bit/s of whole IP packets; default: unlimited, unless there is a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// A trace file, mahimahi or CSV; excludes `rate_bps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Whether a CSV trace restarts at its end. mahimahi traces always do.
    pub trace_repeat: bool,
    /// Propagation delay in milliseconds, one way.
    pub delay_ms: f64,
    /// Upper bound of the random extra delay in milliseconds.
    pub jitter_ms: f64,
    /// Whether jitter may reorder packets.
    pub reorder: bool,
    /// Loss on the medium.
    pub loss: LossModel,
    /// Maximum number of waiting packets; 1000 if neither limit is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_packets: Option<usize>,
    /// Maximum number of waiting bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<usize>,
    /// Maximum packet size in bytes; larger packets are dropped silently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu_bytes: Option<usize>,
    /// Whether the link starts with carrier.
    pub up: bool,
    /// Whether the link starts as a black hole.
    pub black_hole: bool,
    /// Fills passing IOAM traces as the node with this id, 1 to 16777214; default: no IOAM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ioam_node: Option<u32>,
    /// IOAM namespace of the traces to fill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ioam_namespace: Option<u16>,
    /// Telemetry to remove from passing packets: `none`, `traces`, `reports` or `both`.
    pub strip: Strip,
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self {
            rate_bps: None,
            trace: None,
            trace_repeat: false,
            delay_ms: 0.0,
            jitter_ms: 0.0,
            reorder: false,
            loss: LossModel::None,
            queue_packets: None,
            queue_bytes: None,
            mtu_bytes: None,
            up: true,
            black_hole: false,
            ioam_node: None,
            ioam_namespace: None,
            strip: Strip::None,
        }
    }
}

/// Changes to a running link; only the given keys change.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkPatch {
    /// New rate in bit/s; 0 stalls the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// New trace file; excludes `rate_bps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Whether the new CSV trace restarts at its end.
    pub trace_repeat: bool,
    /// New propagation delay in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<f64>,
    /// New jitter bound in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_ms: Option<f64>,
    /// Whether jitter may reorder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<bool>,
    /// New loss model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<LossModel>,
    /// New limit of waiting packets. If only one limit is given, the other is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_packets: Option<usize>,
    /// New limit of waiting bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_bytes: Option<usize>,
    /// New maximum packet size in bytes; 0: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu_bytes: Option<usize>,
    /// Carrier up or down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Black hole on or off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub black_hole: Option<bool>,
    /// Telemetry to remove from now on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strip: Option<Strip>,
}

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// A value is out of range.
    #[error("{key} = {value}: {remedy}")]
    Value {
        /// The configuration key.
        key: String,
        /// The configured value.
        value: String,
        /// The valid values.
        remedy: &'static str,
    },
    /// The trace file cannot be read.
    #[error("trace \"{file}\" cannot be read: {cause}; give the path of a mahimahi or CSV trace")]
    TraceFile {
        /// The path as written.
        file: String,
        /// The error of the operating system.
        cause: String,
    },
    /// The trace file is malformed.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Returns the text of a trace file by its configured name; this crate opens no files.
pub type ReadTrace<'a> = &'a mut dyn FnMut(&str) -> Result<String, String>;

impl LinkSpec {
    /// Validates every value and reads the trace.
    ///
    /// # Errors
    /// The first value that is out of range, by key, or the fault of the trace.
    pub fn build(&self, read_trace: ReadTrace<'_>) -> Result<LinkConfig, SpecError> {
        let rate = rate(self.rate_bps, self.trace.as_deref(), self.trace_repeat, read_trace)?;
        Ok(LinkConfig {
            rate: rate.unwrap_or(Rate::Unlimited),
            delay: milliseconds("delay_ms", self.delay_ms)?,
            jitter: milliseconds("jitter_ms", self.jitter_ms)?,
            reorder: self.reorder,
            loss: checked_loss(self.loss)?,
            queue: queue(self.queue_packets, self.queue_bytes).unwrap_or_default(),
            mtu_bytes: self.mtu_bytes.filter(|bytes| *bytes > 0),
            up: self.up,
            black_hole: self.black_hole,
            ioam: ioam(self.ioam_node, self.ioam_namespace)?,
            strip: self.strip,
        })
    }
}

impl LinkPatch {
    /// Validates every value, reads the trace, and lists the changes in the order in which they apply.
    ///
    /// # Errors
    /// Those of [`LinkSpec::build`].
    pub fn build(&self, read_trace: ReadTrace<'_>) -> Result<Vec<LinkChange>, SpecError> {
        let rate = rate(self.rate_bps, self.trace.as_deref(), self.trace_repeat, read_trace)?;
        let delay = self.delay_ms.map(|ms| milliseconds("delay_ms", ms)).transpose()?;
        let jitter = self.jitter_ms.map(|ms| milliseconds("jitter_ms", ms)).transpose()?;
        let loss = self.loss.map(checked_loss).transpose()?;
        Ok([
            rate.map(LinkChange::Rate),
            delay.map(LinkChange::Delay),
            jitter.map(LinkChange::Jitter),
            self.reorder.map(LinkChange::Reorder),
            loss.map(LinkChange::Loss),
            queue(self.queue_packets, self.queue_bytes).map(LinkChange::Queue),
            self.mtu_bytes.map(|bytes| LinkChange::Mtu(Some(bytes).filter(|b| *b > 0))),
            self.up.map(LinkChange::Up),
            self.black_hole.map(LinkChange::BlackHole),
            self.strip.map(LinkChange::Strip),
        ]
        .into_iter()
        .flatten()
        .collect())
    }
}

/// Maximum delay or jitter: one minute, far beyond any link with interactive traffic.
const MAX_DELAY_MS: f64 = 60_000.0;

fn milliseconds(key: &str, ms: f64) -> Result<Duration, SpecError> {
    if (0.0..=MAX_DELAY_MS).contains(&ms) {
        return Ok(Duration::from_nanos((ms * 1e6).round() as u64));
    }
    Err(SpecError::Value { key: key.into(), value: ms.to_string(), remedy: "write 0 to 60000 milliseconds" })
}

fn checked_loss(model: LossModel) -> Result<LossModel, SpecError> {
    match model.bad_parameter() {
        None => Ok(model),
        Some((name, value)) => Err(SpecError::Value {
            key: format!("loss.{name}"),
            value: value.to_string(),
            remedy: "a probability is 0.0 to 1.0",
        }),
    }
}

fn queue(packets: Option<usize>, bytes: Option<usize>) -> Option<QueueLimit> {
    (packets.is_some() || bytes.is_some())
        .then(|| QueueLimit { packets: packets.unwrap_or(usize::MAX), bytes: bytes.unwrap_or(usize::MAX) })
}

fn rate(
    rate_bps: Option<u64>,
    trace: Option<&str>,
    repeat: bool,
    read_trace: ReadTrace<'_>,
) -> Result<Option<Rate>, SpecError> {
    let Some(file) = trace else {
        return Ok(rate_bps.map(Rate::Fixed));
    };
    if let Some(bps) = rate_bps {
        return Err(SpecError::Value {
            key: "rate_bps".into(),
            value: bps.to_string(),
            remedy: "a link has either rate_bps or trace; remove one",
        });
    }
    let text = read_trace(file).map_err(|cause| SpecError::TraceFile { file: file.to_owned(), cause })?;
    let trace = Trace::parse(file, &text)?;
    Ok(Some(Rate::Trace(Arc::new(if repeat { trace.repeating(file)? } else { trace }))))
}

fn ioam(node: Option<u32>, namespace: Option<u16>) -> Result<Option<IoamNode>, SpecError> {
    match node {
        None => Ok(None),
        Some(node_id @ 1..=0xff_fffe) => {
            let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE);
            Ok(Some(IoamNode { node_id, namespace, ..IoamNode::default() }))
        }
        Some(other) => Err(SpecError::Value {
            key: "ioam_node".into(),
            value: other.to_string(),
            remedy: "a node id is 1 to 16777214",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_json(text: &str) -> LinkSpec {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_spec_becomes_a_config() {
        let spec = from_json(
            r#"{"rate_bps": 60000000, "delay_ms": 2.5, "jitter_ms": 3, "queue_bytes": 9000,
                "loss": {"model": "gilbert-elliott", "p": 0.01, "r": 0.2}}"#,
        );
        let config = spec.build(&mut |_| Err("unused".into())).unwrap();
        assert_eq!(config.rate, Rate::Fixed(60_000_000));
        assert_eq!(config.delay, Duration::from_micros(2500));
        assert_eq!(config.queue, QueueLimit { packets: usize::MAX, bytes: 9000 });
        assert_eq!(config.loss, LossModel::GilbertElliott { p: 0.01, r: 0.2, loss_good: 0.0, loss_bad: 1.0 });
        assert_eq!(from_json("{}").build(&mut |_| Err("unused".into())).unwrap(), LinkConfig::default());
    }

    #[test]
    fn errors_name_key_value_and_remedy() {
        let fail =
            |json: &str| from_json(json).build(&mut |_| Err("no such file".into())).unwrap_err().to_string();
        assert_eq!(fail(r#"{"delay_ms": -1}"#), "delay_ms = -1: write 0 to 60000 milliseconds");
        assert_eq!(
            fail(r#"{"loss": {"model": "bernoulli", "probability": 5}}"#),
            "loss.probability = 5: a probability is 0.0 to 1.0"
        );
        assert_eq!(
            fail(r#"{"trace": "a.csv"}"#),
            "trace \"a.csv\" cannot be read: no such file; give the path of a mahimahi or CSV trace"
        );
        assert_eq!(fail(r#"{"ioam_node": 0}"#), "ioam_node = 0: a node id is 1 to 16777214");
        assert!(fail(r#"{"trace": "a.csv", "rate_bps": 5}"#).contains("remove one"));
    }

    #[test]
    fn a_patch_changes_only_the_given_keys() {
        let patch: LinkPatch = serde_json::from_str(r#"{"rate_bps": 1000, "up": false}"#).unwrap();
        let changes = patch.build(&mut |_| Err("unused".into())).unwrap();
        assert_eq!(changes, [LinkChange::Rate(Rate::Fixed(1000)), LinkChange::Up(false)]);
    }
}
