//! Changes to a running cell.

use super::Gnb;
use super::config::{GnbError, TelemetryConfig, UeError, grant_wait};
use super::ue::index;
use crate::amc::Direction;
use crate::channel::Channel;
use crate::queue::{BearerParams, QueueConfig};
use crate::sched::{InterConfig, SliceConfig};
use crate::sdap::DrbId;
use anabranch_element::time::Instant;

/// A change; it takes effect with the next slot.
#[derive(Debug, Clone)]
pub enum GnbCommand {
    /// Replaces the slices or their shares. Every slice with a UE must remain. If slices are added, removed or reordered,
    /// quanta and lags are reset to 0; otherwise they are kept.
    Slices(Vec<SliceConfig>),
    /// The share of one slice, 0 to 100.
    Share {
        /// Its name.
        slice: String,
        /// Percent of the RBs.
        share_percent: f64,
    },
    /// Replaces the scheduler; quanta and lags are reset to 0.
    Scheduler {
        /// Downlink or uplink.
        direction: Direction,
        /// The new scheduler.
        scheduler: InterConfig,
    },
    /// Moves a UE to another slice.
    Move {
        /// Name of the UE.
        ue: String,
        /// Name of the slice.
        slice: String,
    },
    /// Replaces the channel of a UE.
    Channel {
        /// Name of the UE.
        ue: String,
        /// Downlink or uplink.
        direction: Direction,
        /// The new channel; see [`ChannelConfig::build`](crate::channel::ChannelConfig::build).
        channel: Channel,
    },
    /// Replaces the queue discipline of a bearer; waiting packets are kept as far as they fit.
    Queue {
        /// Name of the UE.
        ue: String,
        /// The bearer.
        drb: DrbId,
        /// Downlink or uplink.
        direction: Direction,
        /// The new queue discipline.
        queue: QueueConfig,
        /// Parameters of the bearer for building it.
        params: BearerParams,
    },
    /// Sets the events to emit from now on.
    Telemetry(TelemetryConfig),
}

impl Gnb {
    /// Executes a command at `now`.
    ///
    /// # Errors
    /// Why the command was rejected; nothing has changed in that case.
    pub fn apply(&mut self, command: GnbCommand, now: Instant) -> Result<(), GnbError> {
        match command {
            GnbCommand::Slices(slices) => self.set_slices(slices),
            GnbCommand::Telemetry(telemetry) => {
                self.telemetry = telemetry;
                Ok(())
            }
            GnbCommand::Share { slice, share_percent } => {
                let mut slices = self.slices.clone();
                let found = slices.iter_mut().find(|s| s.name == slice);
                found.ok_or_else(|| no_slice(&slice))?.share_percent = share_percent;
                self.set_slices(slices)
            }
            GnbCommand::Scheduler { direction, scheduler } => {
                scheduler.check_slices(&self.slices)?;
                let built = scheduler.build(self.slices.len(), self.ues.len())?;
                self.links[index(direction)].scheduler = built;
                self.inter[index(direction)] = scheduler;
                Ok(())
            }
            GnbCommand::Move { ue, slice } => {
                let to = self.slices.iter().position(|s| s.name == slice).ok_or_else(|| no_slice(&slice))?;
                self.ue_named(&ue)?.slice = to as u16;
                Ok(())
            }
            GnbCommand::Channel { ue, direction, channel } => {
                self.ue_named(&ue)?.set_channel(direction, channel);
                Ok(())
            }
            GnbCommand::Queue { ue, drb, direction, queue, params } => {
                let name = ue.clone();
                let fail = |what| GnbError::Ue { ue: name, what };
                let delay_slots = self.ue_named(&ue)?.grants.delay_slots();
                let grant_wait = grant_wait(&self.amc, direction, delay_slots);
                let (limiter, buffer) = match queue.build(BearerParams { direction, grant_wait, ..params }) {
                    Ok(built) => built,
                    Err(why) => return Err(fail(why.into())),
                };
                let ue = self.ue_named(&ue)?;
                let Some(bearer) = ue.bearers.iter_mut().find(|b| b.id == drb) else {
                    return Err(fail(UeError::value("drb", drb, "one of its bearers")));
                };
                bearer.set_buffer(direction, buffer, now);
                if direction == Direction::Downlink {
                    bearer.limit_bytes = params.limit.bytes;
                }
                ue.set_limiter(direction, drb, limiter);
                Ok(())
            }
        }
    }

    fn set_slices(&mut self, slices: Vec<SliceConfig>) -> Result<(), GnbError> {
        self.inter.iter().try_for_each(|inter| inter.check_slices(&slices))?;
        let mut places = Vec::with_capacity(self.slices.len());
        for (old, slice) in (0_u16..).zip(&self.slices) {
            let place = slices.iter().position(|s| s.name == slice.name);
            if place.is_none() && self.ues.iter().any(|ue| ue.slice == old) {
                return Err(GnbError::value("slices", &slice.name, "kept, as long as a UE is in it"));
            }
            places.push(place.unwrap_or_default() as u16);
        }
        let same = slices.len() == self.slices.len() && (0_u16..).zip(&places).all(|(old, new)| old == *new);
        if !same {
            for direction in Direction::ALL {
                let built = self.inter[index(direction)].build(slices.len(), self.ues.len())?;
                self.links[index(direction)].scheduler = built;
            }
            for ue in &mut self.ues {
                ue.slice = places.get(usize::from(ue.slice)).copied().unwrap_or_default();
            }
        }
        self.slices = slices;
        Ok(())
    }

    fn ue_named(&mut self, name: &str) -> Result<&mut super::ue::Ue, GnbError> {
        let found = self.ues.iter_mut().find(|ue| ue.name == name);
        found.ok_or_else(|| GnbError::value("ue", name, "the name of a UE"))
    }
}

fn no_slice(name: &str) -> GnbError {
    GnbError::value("slice", name, "the name of a slice")
}
