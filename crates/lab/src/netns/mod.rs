//! The netns backend: a scenario in network namespaces, with kernel TCP and real programs.
// This backend runs in real time, on real clocks; the virtual one does not.
#![allow(clippy::disallowed_methods)]

pub mod agent;
pub mod backend;
pub mod cells;
pub mod diag;
pub mod flows;
pub mod group;
mod lock;
pub mod lwips;
mod nginx;
pub mod observe;
pub mod outcome;
pub mod plan;
pub mod program;
pub mod sandbox;
pub mod senders;
mod slices;
pub mod space;
pub mod stop;
pub mod telemetry;
pub mod timeline;
pub mod tools;
pub mod topology;
pub mod traffic;
pub mod tunnels;
mod vehicle;
mod video;
pub mod web;
