//! `--map`: publishes the paths in a BPF map; reads the maps of all monitors on this machine.

use super::report::Report;
use crate::ctl::table::{bytes, or_dash, rate, table};
use anabranch_cc::collect::PathView;
use anabranch_kern::bpf::{PATH_NODES, PathsMap, PublishedPath, published};
use anyhow::{Context, Result};
use nix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::time::Duration;

/// The map of this monitor, if requested.
pub struct Published(Option<PathsMap>);

impl Published {
    /// Creates a map for `paths` paths, if `wanted`.
    pub fn new(wanted: bool, paths: u32) -> Result<Self> {
        Ok(Self(wanted.then(|| PathsMap::create(paths).context("--map")).transpose()?))
    }

    /// Publishes the paths of a report.
    pub fn set(&mut self, report: &Report) {
        if let Some(map) = &mut self.0 {
            let now = monotonic_us();
            map.publish(report.paths.iter().map(|path| record(path, now)));
        }
    }
}

fn record(path: &PathView, now_us: u64) -> PublishedPath {
    let hop = path.bottleneck.and_then(|at| path.hops.get(at));
    let mut nodes = [None; PATH_NODES];
    for (slot, hop) in nodes.iter_mut().zip(&path.hops) {
        *slot = hop.node.and_then(|id| u32::try_from(id).ok());
    }
    let depth = hop.and_then(|hop| hop.depth_bytes).map(|level| u64::from(level.last));
    let capacity = hop.and_then(|hop| hop.capacity_bytes).map(u64::from);
    PublishedPath {
        seen_us: now_us.saturating_sub(path.silent_ms.saturating_mul(1000)),
        traces: path.traces,
        queue_drops: path.hops.iter().filter_map(|hop| hop.queue_drops).sum(),
        medium_losses: path.hops.iter().filter_map(|hop| hop.medium_losses).sum(),
        link_kbps: hop.and_then(|hop| hop.link_kbps).map(|level| level.last.into()),
        arrival_kbps: hop.and_then(|hop| hop.arrival_kbps).map(|level| level.last.into()),
        depth_bytes: depth,
        free_bytes: capacity.zip(depth).map(|(capacity, depth)| capacity.saturating_sub(depth)),
        flows: hop.and_then(|hop| hop.flows).map_or(0, u32::from),
        namespace: path.namespace,
        hops: u8::try_from(path.hops.len()).unwrap_or(u8::MAX),
        complete: path.complete,
        nodes,
    }
}

const COLUMNS: [&str; 11] = [
    ">map",
    "path",
    ">namespace",
    ">queue",
    ">free",
    ">arrives",
    ">link",
    ">flows",
    ">dropped",
    ">lost",
    ">silent",
];

/// The paths that the monitors on this machine publish, as a table or as one JSON object.
pub fn published_paths(as_json: bool) -> Result<String> {
    let maps = published()?;
    let now = monotonic_us();
    let all = || maps.iter().flat_map(|(map, paths)| paths.iter().map(move |path| (*map, path)));
    if as_json {
        let paths: Vec<_> = all()
            .map(|(map, path)| {
                json!({
                    "map": map, "name": name(path), "namespace": path.namespace, "traces": path.traces,
                    "silent_us": now.saturating_sub(path.seen_us), "complete": path.complete,
                    "queue_drops": path.queue_drops, "medium_losses": path.medium_losses,
                    "link_kbps": path.link_kbps, "arrival_kbps": path.arrival_kbps,
                    "depth_bytes": path.depth_bytes, "free_bytes": path.free_bytes, "flows": path.flows,
                })
            })
            .collect();
        return Ok(format!("{}\n", json!({ "paths": paths })));
    }
    if maps.is_empty() {
        return Ok(
            "no monitor publishes its paths: name an interface with --interface, or start one with --map\n"
                .into(),
        );
    }
    let kbps = |value: Option<u64>| or_dash(value.map(|kbps| rate(kbps as f64 * 1e3)));
    Ok(table(
        &COLUMNS,
        all().map(|(map, path)| {
            vec![
                map.to_string(),
                name(path),
                path.namespace.to_string(),
                or_dash(path.depth_bytes.map(bytes)),
                or_dash(path.free_bytes.map(bytes)),
                kbps(path.arrival_kbps),
                kbps(path.link_kbps),
                if path.flows > 0 { path.flows.to_string() } else { or_dash(None) },
                path.queue_drops.to_string(),
                path.medium_losses.to_string(),
                format!("{:.1} s", now.saturating_sub(path.seen_us) as f64 / 1e6),
            ]
        }),
    ))
}

fn name(path: &PublishedPath) -> String {
    let ids = path.nodes.iter().take(path.hops.into());
    let ids = ids.map(|id| id.map_or_else(|| "?".to_owned(), |id| id.to_string()));
    ids.collect::<Vec<_>>().join("-")
}

fn monotonic_us() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::show::tests::sample;
    use super::*;

    #[test]
    fn the_bottleneck_is_published() {
        let path = record(&sample().paths[0], 1_000_000);
        assert_eq!(
            (path.link_kbps, path.depth_bytes, path.free_bytes),
            (Some(20_000), Some(1500), Some(148_500))
        );
        // Both hops of the sample have 7 drops and 9 losses.
        assert_eq!((path.queue_drops, path.medium_losses, path.seen_us), (14, 18, 996_000));
        assert_eq!((name(&path), path.hops, path.complete), ("?-2".to_owned(), 2, true));
    }
}
