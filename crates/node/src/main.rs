//! `anabranch`: one program, one part per subcommand.
//!
//! ```text
//! anabranch ue    the tunnel end on a device         anabranch keygen  key pairs
//! anabranch upf   the tunnel end at the operator     anabranch ctl     control of a running part
//! anabranch gnb   a cell in the path of real packets
//! anabranch lwip  a node that splits TCP over LTE and Wi-Fi
//! anabranch proxy  flows of unmodified programs on slices, by policy
//! anabranch slice-manager  slices over REST: guarantees, assignment to UEs, and the cells that enforce them
//! anabranch link  an emulated access between two interfaces
//! anabranch cc    congestion controllers in the kernel     anabranch int   telemetry in packets
//! ```
#![forbid(unsafe_code)]
// Without the slice manager, the small part of configuration and REST interface that only it uses is dead
// code.
#![cfg_attr(not(feature = "slice-manager"), allow(dead_code, unused_imports))]
// This program runs in real time, on real clocks; the algorithm crates and the lab do not.
#![allow(clippy::disallowed_methods)]

mod cc;
mod cli;
mod ctl;
mod gnb;
mod keygen;
mod link;
mod lwip;
mod monitor;
mod proxy;
mod runtime;
#[cfg(feature = "slice-manager")]
mod slice_manager;
mod tcp_lane;
#[cfg(test)]
mod testing;
mod ue;
mod upf;

use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = cli::Cli::parse();
    cli::init_logs(&args.log);
    match cli::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The whole error chain on one line: the operation that failed, the place, and (innermost) the
            // remedy.
            eprintln!("anabranch: {error:#}");
            ExitCode::from(cli::exit_code(&error))
        }
    }
}
