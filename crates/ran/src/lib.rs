//! The radio access network: where packets wait between the core network and the air, and for how long.
//!
//! ```text
//!            SDAP                        RLC                   MAC                 air            UE
//!  ┌───────────────────────┐     ┌──────────────────┐   ┌──────────────┐   ┌──────────────┐   ┌─────┐
//!  │ QFI 1 ▯▯▯─┐           │     │ buffer ▯▯▯▯▯▯    │   │ RBs ▦▦▦ per  │   │ HARQ, BLER,  │   │ RLC │
//!  │ QFI 2 ▯▯──┼ scheduler ┼─▶ limiter  (AQM)       ┼──▶│ TTI, slice,  ┼──▶│ numerology,  ┼──▶│ re- ┼─▶
//!  │ QFI 9 ▯▯▯▯┘           │     │ segmentation     │   │ UE: MCS→TBS  │   │ TDD          │   │ ass.│
//!  └───────────────────────┘     └──────────────────┘   └──────┬───────┘   └──────────────┘   └─────┘
//!         ▲  which packet leaves, and when                     │
//!         └────────── report of each TTI: granted, served, left over, forecast
//! ```
//!
//! Nothing can overtake a packet in the RLC buffer; a packet that waits in SDAP can be overtaken. [`queue`] contains the two
//! kinds of queue disciplines: limiters, which decide when SDAP passes packets to RLC, and buffers, which mark or drop in
//! RLC.
//!
//! Main source: Irazabal et al., *Preventing RLC Buffer Sojourn Delays in 5G*, IEEE Access 2021, cited as "RLC" with a
//! section number; TS 37.324 (SDAP), TS 38.322 (RLC), TS 38.321 (MAC), TS 38.214 and 36.213 (PHY).
//!
//! A cell of 25 RBs with one UE, and one packet through it:
//!
//! ```
//! use anabranch_element::packet::Packet;
//! use anabranch_element::time::{Duration, Instant};
//! use anabranch_element::{Element, Port, Sink, drive};
//! use anabranch_ran::channel::ChannelConfig;
//! use anabranch_ran::gnb::{BearerConfig, Gnb, GnbConfig, GnbEvent, UeConfig};
//! use anabranch_ran::queue::Algorithm;
//! use anabranch_ran::sched::SliceConfig;
//!
//! struct Sent(Vec<Packet>);
//! impl Sink<GnbEvent> for Sent {
//!     fn transmit(&mut self, _: Port, packet: Packet) {
//!         self.0.push(packet);
//!     }
//!     fn event(&mut self, _: GnbEvent) {}
//! }
//!
//! let mut config: GnbConfig = serde_json::from_str(r#"{"ues": []}"#)?;
//! config.slices = vec![SliceConfig::new("all", 100.0)];
//! config.ues = vec![UeConfig {
//!     addresses: vec!["10.45.0.2".parse()?],
//!     bearer: BearerConfig::with_queue(Algorithm::Jit),
//!     ..UeConfig::new("phone", "all", ChannelConfig::mcs(28))
//! }];
//! let mut gnb = Gnb::new(&config, &mut |file| Err(format!("there is no file {file}")))?;
//!
//! let packet = anabranch_wire::ip::udp_datagram("192.0.2.1:9".parse()?, "10.45.0.2:9".parse()?, &[0; 100]).unwrap();
//! gnb.on_packet(Gnb::N3, Packet::new(Instant::ZERO, packet), Instant::ZERO);
//! let (mut now, mut sent) = (Instant::ZERO, Sent(Vec::new()));
//! while let Some((next, _)) = drive(&mut gnb, now, &mut sent).filter(|(at, _)| *at <= Instant::from_millis(20)) {
//!     now = next;
//! }
//! assert_eq!(sent.0.len(), 1);
//! assert!(sent.0[0].at < Instant::from_millis(10));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod amc;
pub mod channel;
pub mod gnb;
pub mod mac;
pub mod pdcp;
pub mod queue;
mod registry;
pub mod rlc;
pub mod sched;
pub mod sdap;
