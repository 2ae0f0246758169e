//! Network slices: their profiles, admission control, life cycle, and the information given to UEs.
//!
//! Sources: *Extending Network Slice Management to the End-host* (§2, §3.1, §3.3), GSMA NG.116 (GST and NEST), TS 28.541 §6.3
//! (ServiceProfile), TS 28.531 §5.1 (provisioning). Differences from the paper's Katana: every attribute of a NEST is kept and
//! reaches the UE, guarantees are admitted against capacity, and every step that changes the network can be undone.
//!
//! ```text
//!  NEST ──▶ nest ──▶ profile ──▶ admission ──▶ plan ──▶ (daemon: southbound) ──▶ lifecycle
//!                                    ▲                                                │
//!                               inventory                        view ◀── manager ◀───┘
//! ```
//!
//! [`Manager`] makes decisions without side effects: a command returns the records to store, the daemon stores them, and only
//! then passes them back to the manager. A command or a store that fails therefore changes nothing.
//!
//! Guarantees are checked against capacity:
//!
//! ```
//! use anabranch_slice::{Access, Demand, Guarantee, Inventory, Ledger};
//!
//! let inventory = Inventory::new([Access {
//!     name: "cell".into(),
//!     location: String::new(),
//!     downlink_bps: 100_000_000,
//!     uplink_bps: 50_000_000,
//!     max_share_ppm: 900_000,
//!     delay_ms: 0.0,
//!     rest_slice: "default".into(),
//! }])?;
//! let cell = inventory.get("cell").expect("it was given");
//! let demand: Demand = [("cell".to_owned(), Guarantee::of_rates(60_000_000, 0, cell))].into();
//! let mut ledger = Ledger::default();
//! ledger.admit(&demand, &inventory)?;
//! ledger.add(&demand);
//! assert!(ledger.admit(&demand, &inventory).is_err(), "40 Mbit/s are left");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod admission;
pub mod compile;
pub mod inventory;
pub mod lifecycle;
pub mod manager;
pub mod nest;
pub mod plan;
pub mod profile;
pub mod record;
pub mod view;

pub use admission::{Demand, Guarantee, Ledger, Resource, Shortage};
pub use compile::SliceShare;
pub use inventory::{Access, Inventory};
pub use lifecycle::{Illegal, Phase, State};
pub use manager::{
    Expected, GrowthLimits, Manager, PendingPlacement, Refusal, Released, SliceRequest, Write,
};
pub use nest::{Nest, NestError, Throughput};
pub use plan::{Action, Execution, Outcome, Step};
pub use profile::ServiceProfile;
pub use record::{Assignment, Attachment, Kind, Record, RequestedSlice, Slice, Ue};
pub use view::{SliceFacts, UeView};
