//! The radio access network: where a packet waits between the core network and the air, and for how long.
//!
//! ```text
//!            SDAP                        RLC                   MAC                 air            UE
//!  ┌───────────────────────┐     ┌──────────────────┐   ┌──────────────┐   ┌──────────────┐   ┌─────┐
//!  │ QFI 1 ▯▯▯─┐           │     │ buffer ▯▯▯▯▯▯    │   │ RBs ▦▦▦ per  │   │ HARQ, BLER,  │   │ RLC │
//!  │ QFI 2 ▯▯──┼ scheduler ┼─▶ limiter  (AQM)       ┼──▶│ TTI, slice,  ┼──▶│ numerology,  ┼──▶│ re- ┼─▶
//!  │ QFI 9 ▯▯▯▯┘           │     │ segmentation     │   │ UE: MCS→TBS  │   │ TDD          │   │ ass.│
//!  └───────────────────────┘     └──────────────────┘   └──────┬───────┘   └──────────────┘   └─────┘
//!         ▲  what leaves, and when                             │
//!         └────────── report of each TTI: granted, served, left over, forecast
//! ```
//!
//! A packet that is let down to the RLC buffer can be overtaken by nothing any more; one that waits in SDAP
//! can. [`queue`] holds what decides between the two: the limiters, which pace what SDAP lets down, and the
//! buffers, which mark or drop in RLC.
//!
//! Source of the whole: Irazabal et al., *Preventing RLC Buffer Sojourn Delays in 5G*, IEEE Access 2021,
//! called RLC from here on; TS 37.324 (SDAP), TS 38.322 (RLC), TS 38.321 (MAC), TS 38.214 and 36.213 (PHY).

pub mod amc;
pub mod channel;
pub mod gnb;
pub mod mac;
pub mod pdcp;
pub mod queue;
pub mod rlc;
pub mod sched;
pub mod sdap;
