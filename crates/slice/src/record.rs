//! What is stored: slices, UEs, and documents that are kept as they were sent.

use super::admission::{Demand, larger};
use super::lifecycle::State;
use super::plan::Execution;
use super::profile::ServiceProfile;
use anabranch_steer::Rule;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What kind of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A [`Slice`].
    Slice,
    /// A [`Ue`].
    Ue,
    /// A base slice descriptor.
    Base,
    /// A NEST as it was sent.
    Gst,
    /// A network function.
    Function,
    /// A location.
    Location,
    /// A policy management system.
    Policy,
    /// A booking of a slice (CAMARA).
    Booking,
    /// A QoS session (CAMARA).
    Qod,
    /// An access whose shares this manager sets: what its cell gives to other slices is taken away.
    Access,
}

impl Kind {
    /// Every kind.
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

    /// As it is stored.
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

    /// The kind of this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == name)
    }
}

/// A record.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A slice.
    Slice(Box<Slice>),
    /// A UE.
    Ue(Box<Ue>),
    /// Anything else.
    Document(Value),
}

impl Record {
    /// As it is stored.
    ///
    /// # Errors
    /// A number that JSON has no form for.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        match self {
            Self::Slice(slice) => serde_json::to_string(slice),
            Self::Ue(ue) => serde_json::to_string(ue),
            Self::Document(value) => serde_json::to_string(value),
        }
    }

    /// As it was stored.
    ///
    /// # Errors
    /// The text is not of this kind.
    pub fn from_json(kind: Kind, text: &str) -> Result<Self, serde_json::Error> {
        Ok(match kind {
            Kind::Slice => Self::Slice(serde_json::from_str(text)?),
            Kind::Ue => Self::Ue(serde_json::from_str(text)?),
            _ => Self::Document(serde_json::from_str(text)?),
        })
    }
}

/// A change that is under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// The profile once it is done.
    pub profile: ServiceProfile,
    /// The NEST once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nest: Option<Value>,
    /// Its name once it is done, if that changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where it was asked for once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Vec<String>>,
    /// The share that was asked for once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_ppm: Option<u32>,
    /// By what UEs have it grow once it is done.
    #[serde(default, skip_serializing_if = "Growth::is_empty")]
    pub growth: Growth,
    /// Accesses at which it is in force already.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub applied: BTreeSet<String>,
}

/// What a UE needs of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// Downlink, bit/s.
    pub dl_bps: u64,
    /// Uplink, bit/s.
    pub ul_bps: u64,
    /// How long that counts, Unix milliseconds.
    pub until_ms: u64,
}

/// By what UEs have a slice grow beyond what its operator asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Growth {
    /// What they need, by UE.
    pub needs: BTreeMap<String, Need>,
    /// The profile without it; absent where nobody needs more.
    pub asked: Option<Box<ServiceProfile>>,
}

impl Growth {
    /// Whether nobody needs more.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.needs.is_empty() && self.asked.is_none()
    }
}

/// What an operator asked a slice to be, whichever interface it came by: what PUT sets and GET shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asked {
    /// Its name.
    pub name: String,
    /// What it is to promise, without what UEs have it grow by.
    pub profile: ServiceProfile,
    /// The NEST, kept in step with the profile.
    pub nest: Option<Value>,
    /// Where; empty: where its coverage says.
    pub accesses: Vec<String>,
    /// Share of the RBs, millionths.
    pub share_ppm: Option<u32>,
}

/// How long each phase of the deployment took, milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Choosing accesses and reserving.
    pub placement_ms: u64,
    /// Changing the network.
    pub provisioning_ms: u64,
    /// Making sure that it works.
    pub activation_ms: u64,
}

/// Most errors that are kept.
pub const MAX_ERRORS: usize = 32;

/// A slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Identifier.
    pub id: String,
    /// The tenant whose it is; absent: the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Its name; not unique.
    pub name: String,
    /// Its name at a cell; unique.
    pub cell_name: String,
    /// Where it is in its life.
    #[serde(flatten)]
    pub state: State,
    /// What it promises.
    pub profile: ServiceProfile,
    /// The NEST it was made of, as sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nest: Option<Value>,
    /// A share of the RBs that was asked for, whatever the rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_ppm: Option<u32>,
    /// Where it was asked for; empty: where its coverage says. Absent in records of before 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accesses: Option<Vec<String>>,
    /// By what UEs have it grow.
    #[serde(default, skip_serializing_if = "Growth::is_empty")]
    pub growth: Growth,
    /// Guarantees in force.
    #[serde(default)]
    pub applied: Demand,
    /// Guarantees that are to be in force.
    #[serde(default)]
    pub wanted: Demand,
    /// Guarantees before the change that is under way.
    #[serde(default)]
    pub before: Demand,
    /// Guarantees that a cell may still have, since it did not say that it has not.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unsure: Demand,
    /// What is being done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Execution>,
    /// What it becomes when that is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Box<Pending>>,
    /// Whether removing goes on past failures.
    #[serde(default)]
    pub force: bool,
    /// What is wrong, by access.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub problems: BTreeMap<String, String>,
    /// What went wrong, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// Places its NEST names and no access serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_supported: Vec<String>,
    /// When it was asked for, Unix milliseconds.
    pub created_ms: u64,
    /// When it came into its state, Unix milliseconds.
    pub since_ms: u64,
    /// How often in a row it could not be made.
    #[serde(default)]
    pub tries: u32,
    /// When it is tried again if it has failed, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<u64>,
    /// How long it took.
    #[serde(default)]
    pub timing: Timing,
}

impl Slice {
    /// What it holds back on every access, whichever way the change under way ends.
    #[must_use]
    pub fn reserved(&self) -> Demand {
        larger(&larger(&self.applied, &self.wanted), &larger(&self.before, &self.unsure))
    }

    /// What its operator asked for last, whether or not it is in force yet.
    #[must_use]
    pub fn asked(&self) -> Asked {
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
        Asked {
            name: name.clone(),
            profile: growth.asked.as_ref().map_or(profile, |asked| asked).clone(),
            nest: nest.cloned(),
            // Where nothing is said, it is to stay where it is.
            accesses: accesses.clone().unwrap_or_else(|| self.reserved().into_keys().collect()),
            share_ppm,
        }
    }

    /// Whether MANO has services to start for it.
    #[must_use]
    pub fn has_services(nest: Option<&Value>) -> bool {
        let list = nest.and_then(|n| n.get("service_descriptor")?.get("ns_list")?.as_array());
        list.is_some_and(|list| !list.is_empty())
    }

    /// Notes an error; the oldest go.
    pub fn note(&mut self, error: String) {
        if self.errors.len() >= MAX_ERRORS {
            self.errors.remove(0);
        }
        self.errors.push(error);
    }
}

/// How far the network is with a UE's place in a slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "attachment", content = "why", rename_all = "snake_case")]
pub enum Attachment {
    /// To be done.
    Pending,
    /// Done.
    Active,
    /// It was refused.
    Failed(String),
}

/// A UE's place in a slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    /// The slice's identifier.
    pub slice: String,
    /// The UE's name at the cells, if it has one there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell_ue: Option<String>,
    /// How far the network is.
    #[serde(flatten)]
    pub attachment: Attachment,
}

/// A session of a UE at the UPF.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionRule {
    /// The UE's public key, base64.
    pub public_key: String,
    /// Its steering rules.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// A UE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ue {
    /// Its name.
    pub id: String,
    /// Hash of its token, hexadecimal.
    pub token_hash: String,
    /// Its slices.
    #[serde(default)]
    pub slices: Vec<Assignment>,
    /// Policies pushed to it, as they were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Value>,
    /// Its session at the UPF, if it is to have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionRule>,
    /// How far the UPF is with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_state: Option<Attachment>,
    /// Its names at the cells that are to be put back into the rest: their places were taken away.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub released: BTreeSet<String>,
    /// It is being forgotten: its session is to end first, and its names are to be put back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// When it registered, Unix milliseconds; absent when it has not, or left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_ms: Option<u64>,
}

impl Ue {
    /// A UE that has nothing yet and has not registered.
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
