//! Loading, holding, and asking what is loaded.

use anabranch_core::cc::Algorithm;
use anabranch_core::cc::int::IntConfig;
use anabranch_kern::bpf::{self, Controllers, Counters, Feedback, Source, SourceConfig};
use anyhow::{Context, Result, bail};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::time::Duration;

/// Ctrl-C and the service manager's way to end us; blocked from here on, so that none is missed.
fn ends() -> Result<SigSet> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().context("blocking signals")?;
    Ok(signals)
}

fn ready(what: &str) {
    println!("{what}");
}

/// `anabranch cc load`.
pub fn load(names: &[Algorithm], cgroup: Option<&Path>, config: &IntConfig) -> Result<()> {
    let ends = ends()?;
    let controllers = Controllers::load(names, config)?;
    let feedback = cgroup.map(|group| controllers.feedback(group)).transpose()?;
    let names: Vec<&str> = names.iter().map(|a| a.name()).collect();
    ready(&format!("registered: {}", names.join(" ")));
    ends.wait()?;
    drop((feedback, controllers));
    Ok(())
}

/// `anabranch int source`.
pub fn source(interface: &str, every: u32, namespace: u16) -> Result<()> {
    let ends = ends()?;
    let _source = Source::attach(interface, SourceConfig { namespace, every })?;
    ready(&format!("traces in one of {every} segments on {interface}"));
    ends.wait()?;
    Ok(())
}

/// `anabranch int sink`.
pub fn sink(cgroup: &Path) -> Result<()> {
    let ends = ends()?;
    let _sink = Feedback::receiver(cgroup)?;
    ready(&format!("reports for the sockets of {}", cgroup.display()));
    ends.wait()?;
    Ok(())
}

/// `anabranch cc unload`.
pub fn unload(names: &[Algorithm]) -> Result<()> {
    let registered = bpf::registered()?;
    let wanted: Vec<&str> =
        if names.is_empty() { registered.clone() } else { names.iter().map(|a| a.name()).collect() };
    let mut ended = std::collections::BTreeSet::new();
    for name in &wanted {
        if !registered.contains(name) {
            bail!("{name} is not registered");
        }
        let holders = bpf::holders(name).context("looking for who keeps it")?;
        if holders.is_empty() {
            bail!("nobody that can be seen keeps {name}: is it pinned in /sys/fs/bpf?");
        }
        for pid in holders {
            let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if program.trim() != "anabranch" {
                bail!(
                    "{name} is kept by process {pid}, which is {}, not anabranch: end it yourself",
                    program.trim()
                );
            }
            if ended.insert(pid) {
                kill(Pid::from_raw(pid as i32), Signal::SIGTERM).with_context(|| format!("process {pid}"))?;
            }
        }
    }
    // The names go when the last of the processes has.
    for _ in 0..100 {
        let left = bpf::registered()?;
        if !wanted.iter().any(|name| left.contains(name)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("asked to end, and not gone after 5 s: {}", bpf::registered()?.join(" "))
}

/// `anabranch cc list`.
pub fn list() -> Result<()> {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(["name", "kind", "kept by"]);
    let available = bpf::available().context("the kernel's controllers")?;
    let ours = bpf::LOADABLE.map(Algorithm::name);
    for name in &available {
        let (kind, by) = if ours.contains(&name.as_str()) {
            let pids = bpf::holders(name).unwrap_or_default();
            ("anabranch", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
        } else {
            ("kernel", String::new())
        };
        table.add_row([name.as_str(), kind, &by]);
    }
    for name in ours {
        if !available.iter().any(|n| n == name) {
            table.add_row([name, "not loaded", ""]);
        }
    }
    println!("{table}");
    Ok(())
}

fn fields(c: &Counters) -> [(&'static str, u64); 11] {
    [
        ("acks", c.acks),
        ("losses_medium", c.losses_medium),
        ("losses_congestion", c.losses_congestion),
        ("losses_taken_back", c.losses_taken_back),
        ("acks_stale", c.acks_stale),
        ("reports_in", c.reports_in),
        ("reports_out", c.reports_out),
        ("reports_bad", c.reports_bad),
        ("traces_in", c.traces_in),
        ("traces_out", c.traces_out),
        ("traces_skipped", c.traces_skipped),
    ]
}

/// `anabranch cc show`.
pub fn show(json: bool) -> Result<()> {
    let all = bpf::shown()?;
    if json {
        let programs: Vec<_> = all
            .iter()
            .map(|(name, id, counts)| {
                let counts: serde_json::Map<_, _> =
                    fields(counts).into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
                serde_json::json!({ "program": name, "map": id, "counts": counts })
            })
            .collect();
        println!("{}", serde_json::Value::from(programs));
        return Ok(());
    }
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(["program", "counted"]);
    for (name, _, counts) in &all {
        let told: Vec<String> = fields(counts)
            .into_iter()
            .filter(|f| f.1 > 0)
            .map(|(key, value)| format!("{key} {value}"))
            .collect();
        let told = if told.is_empty() { "nothing yet".to_owned() } else { told.join(", ") };
        table.add_row([name.as_str(), &told]);
    }
    if all.is_empty() {
        println!("nothing of ours is at work");
    } else {
        println!("{table}");
    }
    Ok(())
}
