//! Stored records: slices, UEs, and documents that are kept as received.

use super::admission::{Demand, larger};
use super::lifecycle::State;
use super::plan::Execution;
use super::profile::ServiceProfile;
use anabranch_steer::Rule;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A [`Slice`].
    Slice,
    /// A [`Ue`].
    Ue,
    /// A base slice descriptor.
    Base,
    /// A NEST as received.
    Gst,
    /// A network function of Katana, stored unchanged.
    Function,
    /// A location of Katana, stored unchanged.
    Location,
    /// A policy management system.
    Policy,
    /// A booking of a slice (CAMARA).
    Booking,
    /// A QoS session (CAMARA).
    Qod,
    /// An access whose shares are controlled by this manager; other slices at its cell are removed.
    Access,
}

impl Kind {
    /// All kinds, in the order of declaration.
    pub const ALL: [Self; 10] = [
        Self::Slice,
        Self::Ue,
        Self::Base,
        Self::Gst,
        Self::Function,
        Self::Location,
        Self::Policy,
        Self::Booking,
        Self::Qod,
        Self::Access,
    ];

    /// The stored name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slice => "slice",
            Self::Ue => "ue",
            Self::Base => "base_slice_des",
            Self::Gst => "gst",
            Self::Function => "function",
            Self::Location => "location",
            Self::Policy => "policy",
            Self::Booking => "booking",
            Self::Qod => "qod",
            Self::Access => "access",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }
}

/// A record of the store, by kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// Of [`Kind::Slice`].
    Slice(Box<Slice>),
    /// Of [`Kind::Ue`].
    Ue(Box<Ue>),
    /// Any other document.
    Document(Value),
}

impl Record {
    /// Serialises the record.
    ///
    /// # Errors
    /// A number that cannot be represented in JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        match self {
            Self::Slice(slice) => serde_json::to_string(slice),
            Self::Ue(ue) => serde_json::to_string(ue),
            Self::Document(value) => serde_json::to_string(value),
        }
    }

    /// Deserialises a record.
    ///
    /// # Errors
    /// The text is not a record of this kind.
    pub fn from_json(kind: Kind, text: &str) -> Result<Self, serde_json::Error> {
        Ok(match kind {
            Kind::Slice => Self::Slice(serde_json::from_str(text)?),
            Kind::Ue => Self::Ue(serde_json::from_str(text)?),
            _ => Self::Document(serde_json::from_str(text)?),
        })
    }
}

/// A change in progress.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// The profile after the change.
    pub profile: ServiceProfile,
    /// The NEST after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nest: Option<Value>,
    /// The name after the change, if it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The requested accesses after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Vec<String>>,
    /// The requested share after the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_ppm: Option<u32>,
    /// The growth for UEs after the change.
    #[serde(default, skip_serializing_if = "Growth::is_empty")]
    pub growth: Growth,
    /// Accesses at which the change is already applied.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub applied: BTreeSet<String>,
}

/// A UE's need of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// Downlink rate, bit/s.
    pub dl_bps: u64,
    /// Uplink rate, bit/s.
    pub ul_bps: u64,
    /// When the need expires, Unix milliseconds.
    pub until_ms: u64,
}

/// Growth of a slice beyond the operator's request, for its UEs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Growth {
    /// Needs by UE.
    pub needs: BTreeMap<String, Need>,
    /// The profile without the growth; absent if there is none.
    pub asked: Option<Box<ServiceProfile>>,
}

impl Growth {
    /// Whether there are no needs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.needs.is_empty() && self.asked.is_none()
    }
}

/// An operator's request for a slice, from any interface: what PUT sets and GET shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestedSlice {
    /// Name for operators; not unique.
    pub name: String,
    /// The profile without growth for UEs.
    pub profile: ServiceProfile,
    /// The NEST, updated with the profile.
    pub nest: Option<Value>,
    /// Accesses; empty: those of its coverage.
    pub accesses: Vec<String>,
    /// Share of the RBs, millionths.
    pub share_ppm: Option<u32>,
}

/// Duration of each phase of the deployment, milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Selecting accesses and reserving guarantees.
    pub placement_ms: u64,
    /// Configuring the network.
    pub provisioning_ms: u64,
    /// Verifying the configuration.
    pub activation_ms: u64,
}

/// Maximum number of errors kept.
pub const MAX_ERRORS: usize = 32;

/// A slice as stored: the requested properties, the state of its deployment, and its reservations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Identifier.
    pub id: String,
    /// The tenant; absent: the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its name; not unique.
    pub name: String,
    /// Its name at a cell; unique.
    pub cell_name: String,
    /// State in the life cycle.
    #[serde(flatten)]
    pub state: State,
    /// Profile in force.
    pub profile: ServiceProfile,
    /// The NEST from which it was created, as received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nest: Option<Value>,
    /// Requested minimum share of the RBs, millionths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_ppm: Option<u32>,
    /// Requested accesses; empty: those of its coverage. Absent in records of versions before 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Vec<String>>,
    /// Growth for UEs.
    #[serde(default, skip_serializing_if = "Growth::is_empty")]
    pub growth: Growth,
    /// Guarantees in force.
    #[serde(default)]
    pub applied: Demand,
    /// Guarantees to be in force after the change.
    #[serde(default)]
    pub wanted: Demand,
    /// Guarantees before the change in progress.
    #[serde(default)]
    pub before: Demand,
    /// Guarantees that a cell may still have, because it has not confirmed their removal.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unsure: Demand,
    /// The plan in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Execution>,
    /// The properties after the plan is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Box<Pending>>,
    /// Whether removal proceeds despite failures.
    #[serde(default)]
    pub force: bool,
    /// Faults by access.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub problems: BTreeMap<String, String>,
    /// Errors, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// Locations in its NEST that no access serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_supported: Vec<String>,
    /// When it was requested, Unix milliseconds.
    pub created_ms: u64,
    /// When it entered its state, Unix milliseconds.
    pub since_ms: u64,
    /// Number of consecutive failures.
    #[serde(default)]
    pub tries: u32,
    /// When it is retried after a failure, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<u64>,
    /// Duration of the deployment.
    #[serde(default)]
    pub timing: Timing,
}

impl Slice {
    /// Guarantees reserved on every access, whichever way the change in progress ends.
    #[must_use]
    pub fn reserved(&self) -> Demand {
        larger(&larger(&self.applied, &self.wanted), &larger(&self.before, &self.unsure))
    }

    /// The operator's last request, whether or not it is in force yet.
    #[must_use]
    pub fn requested_slice(&self) -> RequestedSlice {
        let (name, nest, accesses, share_ppm, growth, profile) = match &self.pending {
            Some(p) => {
                let name = p.name.as_ref().unwrap_or(&self.name);
                (
                    name,
                    p.nest.as_ref().or(self.nest.as_ref()),
                    &p.accesses,
                    p.share_ppm,
                    &p.growth,
                    &p.profile,
                )
            }
            None => {
                (&self.name, self.nest.as_ref(), &self.accesses, self.share_ppm, &self.growth, &self.profile)
            }
        };
        RequestedSlice {
            name: name.clone(),
            profile: growth.asked.as_ref().map_or(profile, |asked| asked).clone(),
            nest: nest.cloned(),
            // By default it stays at its accesses.
            accesses: accesses.clone().unwrap_or_else(|| self.reserved().into_keys().collect()),
            share_ppm,
        }
    }

    /// Whether MANO has to start services for it.
    #[must_use]
    pub fn has_services(nest: Option<&Value>) -> bool {
        let list = nest.and_then(|n| n.get("service_descriptor")?.get("ns_list")?.as_array());
        list.is_some_and(|list| !list.is_empty())
    }

    /// Records an error; the oldest are dropped.
    pub fn note(&mut self, error: String) {
        if self.errors.len() >= MAX_ERRORS {
            self.errors.remove(0);
        }
        self.errors.push(error);
    }
}

/// Progress of applying a UE's place in a slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "attachment", content = "why", rename_all = "snake_case")]
pub enum Attachment {
    /// Not yet applied.
    Pending,
    /// Applied.
    Active,
    /// Refused, for this reason.
    Failed(String),
}

/// A UE's place in a slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// Identifier of the slice.
    pub slice: String,
    /// Name of the UE at the cells, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell_ue: Option<String>,
    /// Progress in the network.
    #[serde(flatten)]
    pub attachment: Attachment,
}

/// A session of a UE at the UPF.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionRule {
    /// Public key of the UE, base64.
    pub public_key: String,
    /// Its steering rules.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// A UE as stored: its token, slices and policies, and its session at the UPF.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ue {
    /// Its name.
    pub id: String,
    /// Hash of its token, hexadecimal.
    pub token_hash: String,
    /// Its slices.
    #[serde(default)]
    pub slices: Vec<Assignment>,
    /// Policies pushed to it, as received.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Value>,
    /// Its session at the UPF, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRule>,
    /// Progress at the UPF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_state: Option<Attachment>,
    /// Names at the cells to be moved back to the default slice, because their places were removed.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub released: BTreeSet<String>,
    /// Being deleted: its session must end first, and its names must be moved back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// When it registered, Unix milliseconds; absent if it has not, or has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_ms: Option<u64>,
}

impl Ue {
    /// A new UE that has not registered.
    #[must_use]
    pub const fn new(id: String, token_hash: String) -> Self {
        Self {
            id,
            token_hash,
            slices: Vec::new(),
            policies: Vec::new(),
            session: None,
            session_state: None,
            released: BTreeSet::new(),
            leaving: false,
            registered_ms: None,
        }
    }
}
