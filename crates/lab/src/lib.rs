//! anabranch-lab: scenarios, claims and reports.
//!
//! ```text
//! scenario file ─▶ [`scenario`] ─▶ [`runner`] ─▶ [`claims`] ─▶ [`output`], [`report`]
//!                                     │
//!                         [`backend`]: [`virtual_backend`] | netns
//! ```
#![forbid(unsafe_code)]

pub mod backend;
#[allow(clippy::disallowed_methods, reason = "real programs, in real time")]
pub mod bench;
pub mod cell;
pub mod chaos;
pub mod claims;
pub mod cli;
#[allow(clippy::disallowed_methods, reason = "real programs, in real time")]
pub mod demo;
pub mod markdown;
pub mod matrix;
pub mod measure;
pub mod metrics;
pub mod netns;
pub mod output;
pub mod report;
pub mod reproduction;
pub mod runner;
pub mod scenario;
pub mod sim;
pub mod slices;
pub mod virtual_backend;
