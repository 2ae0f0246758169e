//! Packets of the node itself: echo requests to UEs on both legs, and their answers.

use super::Leg;
use super::config::{ProbeConfig, WifiLeg};
use super::law::{Law, TRAIN_PACKET};
use super::link::LinkView;
use super::node::{Node, NodeSink, Ue};
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::{emit_echo, parse_echo, src_dst};
use siphasher::sip::SipHasher13;
use std::net::IpAddr;

/// Payload of a probe, bytes: number of the UE, leg, train (0: none), sequence number, and a keyed hash of them.
/// Without having seen the request, nobody can forge the answer.
const PAYLOAD: usize = 16;

impl Node {
    /// Sends all due probes.
    pub(super) fn send_probes(&mut self, now: Instant, out: &mut impl NodeSink) {
        while let Some((at, number)) = self.probe_timers.first() {
            if at > now {
                return;
            }
            let Some(probe) = &self.config.probe else { return };
            let Some(ue) = self.ues.get_mut(number as usize) else {
                self.probe_timers.clear(number);
                continue;
            };
            let busy_interval = ue.probe_interval(probe);
            let is_overdue = ue.links.iter().any(|link| link.is_overdue(busy_interval, now));
            for leg in Leg::ALL {
                let on_wifi = leg == Leg::Wifi && self.config.wifi_leg == WifiLeg::Translate;
                let to = if on_wifi { &ue.config.wifi } else { &ue.config.addresses };
                let pair = probe
                    .addresses
                    .iter()
                    .find_map(|src| Some((*src, *to.iter().find(|dst| dst.is_ipv4() == src.is_ipv4())?)));
                let Some((src, dst)) = pair else { continue };
                let link = &mut ue.links[leg as usize];
                let id = (number << 1) as u16 | leg as u16;
                let header = if src.is_ipv4() { 28 } else { 48 };
                let len = header + PAYLOAD;
                if let Some(law) = &mut ue.law {
                    let was_up = link.up;
                    let patience =
                        Duration::from_millis(u64::from(probe.interval_ms) * u64::from(probe.lost_after));
                    link.check(probe.lost_after, patience, now);
                    if was_up && !link.up {
                        law.interrupted(leg);
                    }
                    if !link.may_ask(now) {
                        continue;
                    }
                }
                // With the autonomous law, `link.check` above has already decided whether the leg is up.
                let lost_after = if ue.law.is_some() { u16::MAX } else { probe.lost_after };
                let sequence = link.probe(len, lost_after, now);
                if let Some(law) = &mut ue.law {
                    law.probes(leg, sequence, len, now);
                }
                let token = payload(number, leg, 0, sequence, self.key);
                if let Ok(packet) = emit_echo(src, dst, false, (id, sequence), &token) {
                    out.leg(leg, &packet);
                }
                let Some(law) = &mut ue.law else { continue };
                while let Some(train) = law.poll_train(leg, &mut self.trains, now) {
                    // The full-size packet is an echo reply without a request, so the UE does not answer it.
                    let full = [0; TRAIN_PACKET as usize];
                    let full = &full[..usize::from(TRAIN_PACKET) - header - len];
                    let of = train_byte(train.train);
                    let token = payload(number, leg, of, train.index, self.key);
                    for (reply, payload) in [(true, full), (false, &token[..])] {
                        if let Ok(packet) = emit_echo(src, dst, reply, (id, train.index), payload) {
                            out.leg(leg, &packet);
                        }
                    }
                }
            }
            ue.divide(&self.config.steering, now);
            ue.probed_at = now;
            let idle_interval = Duration::from_millis(probe.idle_ms.into());
            let wait =
                if core::mem::take(&mut ue.is_busy) || is_overdue { busy_interval } else { idle_interval };
            self.probe_timers.set(number, now + wait);
        }
    }

    /// A UE receives packets and is no longer idle: probe it sooner.
    #[inline]
    pub(super) fn wake(&mut self, number: u32) {
        let Some(ue) = self.ues.get_mut(number as usize) else { return };
        if !ue.is_busy {
            ue.is_busy = true;
            if let Some(probe) = &self.config.probe {
                let soon = ue.probed_at + ue.probe_interval(probe);
                self.probe_timers.set(number, soon);
            }
        }
    }

    /// Whether an uplink packet was an answer for the node itself, which has consumed it.
    pub(super) fn take_answer(&mut self, packet: &[u8], now: Instant) -> bool {
        let Some(probe) = &self.config.probe else { return false };
        let is_ours = |dst: IpAddr| probe.addresses.contains(&dst);
        if !src_dst(packet).is_ok_and(|(_, dst)| is_ours(dst)) {
            return false;
        }
        let Ok(echo) = parse_echo(packet) else { return false };
        if !echo.reply {
            return false;
        }
        let Some(got) = packet.get(echo.payload).and_then(|got| <[u8; PAYLOAD]>::try_from(got).ok()) else {
            return false;
        };
        let number = u32::from_be_bytes([got[0], got[1], got[2], got[3]]);
        let leg = if got[4] == 0 { Leg::Lte } else { Leg::Wifi };
        if got != payload(number, leg, got[5], echo.sequence, self.key) {
            return false;
        }
        let Some(ue) = self.ues.get_mut(number as usize) else { return true };
        if got[5] > 0 {
            if let Some(law) = &mut ue.law
                && law.train_answered(leg, got[5], echo.sequence, now)
            {
                self.probe_timers.set(number, now);
            }
            return true;
        }
        if ue.links[leg as usize].answered(echo.sequence, now) {
            if let Some(law) = &mut ue.law {
                law.answered(&ue.links, leg, echo.sequence, now);
            }
            ue.divide(&self.config.steering, now);
        }
        true
    }

    /// The measured state of the legs of a UE; `None` if there is no UE of that name.
    #[must_use]
    pub fn links(&self, ue: &str) -> Option<[LinkView; 2]> {
        let ue = self.ues.iter().find(|known| known.config.name == ue)?;
        Some(Leg::ALL.map(|leg| {
            let view = ue.links[leg as usize].view(leg);
            let bps = ue.law.as_ref().map(|law| law.estimate_bps(leg));
            LinkView { rate_bps: bps.map_or(view.rate_bps, |bps| bps as f64), ..view }
        }))
    }

    /// The current share of LTE among a UE's packets, percent; `None` if there is no UE of that name.
    #[cfg(test)]
    pub(crate) fn lte_percent(&self, ue: &str) -> Option<f64> {
        let ue = self.ues.iter().find(|known| known.config.name == ue)?;
        Some(f64::from(ue.lte_share) * 100.0 / f64::from(super::steer::ONE))
    }
}

impl Ue {
    /// Time between probes while the UE receives packets.
    fn probe_interval(&self, probe: &ProbeConfig) -> Duration {
        let interval = Duration::from_millis(probe.interval_ms.into());
        if self.law.is_some() { Law::probe_interval(&self.links, interval) } else { interval }
    }
}

/// A train's number as carried in its packets, 1 to 255; 0 means no train.
pub(super) const fn train_byte(train: u16) -> u8 {
    (train % 255) as u8 + 1
}

fn payload(number: u32, leg: Leg, train: u8, sequence: u16, key: u64) -> [u8; PAYLOAD] {
    let mut b = [0; PAYLOAD];
    b[..4].copy_from_slice(&number.to_be_bytes());
    (b[4], b[5]) = (leg as u8, train);
    b[6..8].copy_from_slice(&sequence.to_be_bytes());
    let token = SipHasher13::new_with_keys(key, key.rotate_left(17)).hash(&b[..8]);
    b[8..].copy_from_slice(&token.to_be_bytes());
    b
}
