//! `anabranch link`: an access emulated in real time between network interfaces.
//!
//! ```text
//!   UE namespace          link namespace                    UPF namespace
//!  ┌───────────┐   veth  ┌────────────────────────┐  veth  ┌────────────┐
//!  │ wifi0   ──┼─────────┼─ a   queue · rate  b ──┼────────┼── acc0     │
//!  │           │         │      loss · delay      │        │            │
//!  └───────────┘         └────────────────────────┘        └────────────┘
//!                             control socket
//! ```
//!
//! Frames are read from packet sockets, pass through the link of crate `engine` ([`anabranch_engine::link`]), and are written
//! to the other side.
//!
//! Segmentation and checksum offload may stay on at the hosts of both ends: frames that it leaves on a veth pair are split into
//! packets, and their checksums completed, as a network interface would do.

mod spec;

use crate::runtime::folder::socket_in_use;
use anabranch_element::Port as Side;
use anabranch_engine::link::{Control, Ports, Running};
use anabranch_link::DuplexLink;
use anyhow::{Context, Result, bail};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// Arguments of `anabranch link`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Keys of a link, each optional:
  rate_bps        bit/s of whole IP packets; left out: unlimited
  trace           mahimahi or CSV trace file instead of a rate;
                  trace_repeat = true repeats a CSV trace
  delay_ms        one way                jitter_ms      extra delay, 0 to this
  reorder         true: jitter may reorder
  loss            {model=\"bernoulli\", probability=0.01}, or
                  {model=\"gilbert-elliott\", p=0.01, r=0.3}
  queue_packets   tail drop, 1000        queue_bytes    tail drop, no limit
  mtu_bytes       larger packets vanish  up, black_hole true or false
  ioam_node       fills IOAM traces as this node; ioam_namespace, 123
  strip           removes \"traces\", \"reports\" or \"both\" from packets,
                  as some middleboxes do

Example:
  anabranch link --a wifi-ue --b wifi-upf \\
      --both 'rate_bps=60_000_000, delay_ms=8, queue_packets=200' \\
      --b-to-a 'rate_bps=80_000_000' --control /run/wifi.sock

Control: one JSON object per line on the socket, answered by one line. The
direction is a-to-b, b-to-a or both.
  {\"op\":\"set\",\"direction\":\"both\",\"change\":{\"rate_bps\":10000000}}
  {\"op\":\"set\",\"change\":{\"up\":false}}      {\"op\":\"stats\"}      {\"op\":\"stop\"}")]
pub struct Args {
    /// Interface on the UE's side; may be repeated for several UEs on one link.
    #[arg(long, required = true, value_name = "INTERFACE")]
    a: Vec<String>,
    /// Interface on the UPF's side.
    #[arg(long, required = true, value_name = "INTERFACE")]
    b: Vec<String>,
    /// TOML file with the tables [both], [a_to_b] and [b_to_a].
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Keys of both directions, such as `rate_bps=60_000_000, delay_ms=10`; overrides the file.
    #[arg(long, value_name = "KEYS", default_value = "", hide_default_value = true)]
    both: String,
    /// Keys of the direction from A to B; overrides `--both`.
    #[arg(long, value_name = "KEYS", default_value = "", hide_default_value = true)]
    a_to_b: String,
    /// Keys of the direction from B to A; overrides `--both`.
    #[arg(long, value_name = "KEYS", default_value = "", hide_default_value = true)]
    b_to_a: String,
    /// Seed of loss and jitter.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Side whose interfaces lose their carrier while the link is down.
    #[arg(long, value_enum, default_value_t = Carrier::A)]
    carrier: Carrier,
    /// Unix socket for changes and counters at run time.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// The interfaces that lose their carrier while a link is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Carrier {
    /// Those of side A (the UEs).
    A,
    /// Those of side B.
    B,
    /// Those of both sides.
    Both,
    /// None; packets are dropped silently.
    None,
}

impl Carrier {
    const fn sides(self) -> &'static [Side] {
        match self {
            Self::A => &[DuplexLink::A],
            Self::B => &[DuplexLink::B],
            Self::Both => &[DuplexLink::A, DuplexLink::B],
            Self::None => &[],
        }
    }
}

/// Runs until SIGINT, SIGTERM or `stop` on the control socket; then prints the counters as JSON.
pub fn run(args: Args) -> Result<()> {
    let [a_to_b, b_to_a] = spec::directions(&args)?;
    check_interfaces(&args.a, &args.b)?;
    let ports = Ports::open(&args.a, &args.b)?;
    let control = args.control.as_deref().map(listen).transpose()?;
    let mut link = Running::new(ports, a_to_b, b_to_a, args.seed, args.carrier.sides());
    let result = link.run(control);
    println!("{}", serde_json::to_string(&link.stats()).context("counters as JSON")?);
    result
}

/// Checks that no interface is named twice: its frames would return to it.
fn check_interfaces(a: &[String], b: &[String]) -> Result<()> {
    let names: Vec<&String> = a.iter().chain(b).collect();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            bail!("--a, --b: interface \"{name}\" is named twice: a link needs different interfaces");
        }
    }
    Ok(())
}

/// Listens at `path`. A stale socket of a program that has ended is replaced; a socket in use is an error.
fn listen(path: &Path) -> Result<Control> {
    let name = path.display();
    let in_use = socket_in_use(path);
    if in_use.with_context(|| format!("--control {name}: removing the old socket"))? {
        bail!("--control {name}: another program listens there: stop it, or choose another path");
    }
    let listener = UnixListener::bind(path)
        .with_context(|| format!("--control {name}: the path must be free and its directory writable"))?;
    Control::new(listener, path).with_context(|| format!("--control {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_named_once() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (a, b, fits) in
            [(&["x"][..], &["y"][..], true), (&["x"], &["x"], false), (&["x", "z", "x"], &["y"], false)]
        {
            assert_eq!(check_interfaces(&names(a), &names(b)).is_ok(), fits, "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_socket_in_use_is_not_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = listen(&path).unwrap();
        assert!(listen(&path).is_err());
        drop(first);
        assert!(!path.exists());
        // A stale socket of a killed program is replaced.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        assert!(listen(&path).is_ok());
        // A wrong path must not cost a file.
        let file = dir.path().join("link.toml");
        std::fs::write(&file, "[both]").unwrap();
        assert!(listen(&file).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"[both]");
    }
}
