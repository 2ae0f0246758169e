//! The configuration of the two directions of a link, from the command line and a file.

use super::Args;
use crate::runtime::config::read_trace;
use anabranch_link::{LinkConfig, LinkSpec};
use anyhow::{Context, Result, bail};
use toml::{Table, Value};

/// The configurations of A to B and B to A. Later sources override earlier ones: file, `--both`, one
/// direction.
pub(super) fn directions(args: &Args) -> Result<[LinkConfig; 2]> {
    let mut layers = [Table::new(), Table::new(), Table::new()];
    if let Some(path) = &args.file {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
        let file: Table = text.parse().with_context(|| format!("{name} is not valid TOML"))?;
        for (key, value) in file {
            let slot = match key.as_str() {
                "both" => 0,
                "a_to_b" => 1,
                "b_to_a" => 2,
                _ => bail!("{name}: [{key}]: valid tables are [both], [a_to_b] and [b_to_a]"),
            };
            match value {
                Value::Table(table) => layers[slot] = table,
                _ => bail!("{name}: {key} must be a table: write [{key}] on a line of its own"),
            }
        }
    }
    for (slot, (flag, keys)) in
        [("--both", &args.both), ("--a-to-b", &args.a_to_b), ("--b-to-a", &args.b_to_a)].iter().enumerate()
    {
        layers[slot].extend(keys_of(keys).with_context(|| (*flag).to_owned())?);
    }
    let [both, a_to_b, b_to_a] = layers;
    Ok([one("A to B", &both, a_to_b)?, one("B to A", &both, b_to_a)?])
}

/// Parses `rate_bps=1, delay_ms=2` as TOML keys.
fn keys_of(text: &str) -> Result<Table> {
    let line = text.trim().trim_end_matches(',');
    let mut outer: Table = format!("keys = {{{line}}}")
        .parse()
        .with_context(|| format!("\"{text}\": write KEY=VALUE, KEY=VALUE, ..."))?;
    match outer.remove("keys") {
        Some(Value::Table(keys)) if outer.is_empty() => Ok(keys),
        _ => bail!("\"{text}\": write KEY=VALUE, KEY=VALUE, ..."),
    }
}

fn one(direction: &str, both: &Table, own: Table) -> Result<LinkConfig> {
    let mut keys = both.clone();
    // A rate and a trace exclude each other; the more specific source wins.
    for (a, b) in [("rate_bps", "trace"), ("trace", "rate_bps")] {
        if own.contains_key(a) && !own.contains_key(b) {
            keys.remove(b);
        }
    }
    keys.extend(own);
    let spec: LinkSpec = Value::Table(keys).try_into().with_context(|| format!("direction {direction}"))?;
    spec.build(&mut read_trace).with_context(|| format!("direction {direction}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_link::{LossModel, Rate};
    use clap::Parser;
    use std::io::Write;
    use std::time::Duration;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(more: &[&str]) -> Result<[LinkConfig; 2]> {
        let line = ["link", "--a", "x", "--b", "y"].iter().chain(more);
        directions(&Cli::try_parse_from(line).unwrap().args)
    }

    #[test]
    fn the_most_specific_source_wins() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"[both]\nrate_bps = 1\ndelay_ms = 5\n[b_to_a]\njitter_ms = 2\n").unwrap();
        let [up, down] = parse(&[
            "--file",
            file.path().to_str().unwrap(),
            "--both",
            "rate_bps=60_000_000, loss={model=\"bernoulli\", probability=0.5},",
            "--b-to-a",
            "rate_bps=80_000_000",
        ])
        .unwrap();
        assert_eq!((up.rate, down.rate), (Rate::Fixed(60_000_000), Rate::Fixed(80_000_000)));
        assert_eq!((up.delay, down.delay), (Duration::from_millis(5), Duration::from_millis(5)));
        assert_eq!((up.jitter, down.jitter), (Duration::ZERO, Duration::from_millis(2)));
        assert_eq!(up.loss, LossModel::Bernoulli { probability: 0.5 });
    }

    #[test]
    fn a_trace_in_one_direction_replaces_the_rate_of_both() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"1\n2\n4\n").unwrap();
        let trace = format!("trace='{}'", file.path().display());
        let [up, down] = parse(&["--both", "rate_bps=5", "--a-to-b", &trace]).unwrap();
        assert!(matches!(up.rate, Rate::Trace(_)));
        assert_eq!(down.rate, Rate::Fixed(5));
    }

    #[test]
    fn errors_name_place_and_remedy() {
        for (flags, parts) in [
            (["--both", "rate=5"], ["A to B", "rate_bps"]),
            (["--both", "rate_bps"], ["--both", "KEY=VALUE"]),
            (["--a-to-b", "rate_bps=1}\nx={"], ["--a-to-b", "KEY=VALUE"]),
            (["--b-to-a", "delay_ms=-1"], ["B to A", "0 to 60000"]),
            (["--both", "trace='/nowhere'"], ["/nowhere", "cannot be read"]),
        ] {
            let error = format!("{:#}", parse(&flags).unwrap_err());
            assert!(parts.iter().all(|p| error.contains(p)), "{error}");
        }
    }
}
