//! anabranch's algorithms: sans-IO, deterministic, no clocks, no sockets, no threads.
//!
//! Start at [`element`] (the contract); every module is a leaf that imports only [`anabranch_wire`],
//! the contract and plain policy types, except `ue` and `upf`, which compose them.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod access;
pub mod cc;
pub mod collect;
pub mod element;
pub mod ioam;
pub mod lwip;
pub mod net;
pub mod packet;
pub mod policy;
pub mod ran;
pub mod slice;
pub mod taps;
pub mod time;
pub mod ue;
pub mod upf;

/// The tutorial's examples are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/add-an-algorithm.md")]
struct Tutorial;
