//! The node's own packets: echo requests to UEs on both legs, and the answers.

use super::Leg;
use super::config::WifiLeg;
use super::link::LinkView;
use super::node::{Node, NodeSink};
use super::steer::lte_share;
use anabranch_element::time::{Duration, Instant};
use anabranch_wire::ip::{emit_echo, parse_echo, src_dst};
use siphasher::sip::SipHasher13;
use std::net::IpAddr;

/// Number of the UE, leg, sequence number, and a keyed hash of them: who did not see the request cannot answer it.
const PAYLOAD: usize = 16;

impl Node {
    /// Sends what is due.
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
            for leg in Leg::ALL {
                let on_wifi = leg == Leg::Wifi && self.config.wifi_leg == WifiLeg::Translate;
                let to = if on_wifi { &ue.config.wifi } else { &ue.config.addresses };
                let pair = probe
                    .addresses
                    .iter()
                    .find_map(|src| Some((*src, *to.iter().find(|dst| dst.is_ipv4() == src.is_ipv4())?)));
                let Some((src, dst)) = pair else { continue };
                let link = &mut ue.links[leg as usize];
                let len = if src.is_ipv4() { 28 } else { 48 } + PAYLOAD;
                let sequence = link.probe(len, probe.lost_after, now);
                let payload = payload(number, leg, sequence, self.key);
                let id = (number << 1) as u16 | leg as u16;
                if let Ok(packet) = emit_echo(src, dst, false, (id, sequence), &payload) {
                    out.leg(leg, &packet);
                }
            }
            ue.lte_share = lte_share(&self.config.steering, &ue.links, &mut ue.switch, now);
            ue.probed_at = now;
            let wait = if core::mem::take(&mut ue.is_busy) { probe.interval_ms } else { probe.idle_ms };
            self.probe_timers.set(number, now + Duration::from_millis(wait.into()));
        }
    }

    /// A UE gets packets: it is not idle any more.
    #[inline]
    pub(super) fn wake(&mut self, number: u32) {
        let Some(ue) = self.ues.get_mut(number as usize) else { return };
        if !ue.is_busy {
            ue.is_busy = true;
            if let Some(probe) = &self.config.probe {
                let soon = ue.probed_at + Duration::from_millis(probe.interval_ms.into());
                self.probe_timers.set(number, soon);
            }
        }
    }

    /// Whether an uplink packet is for the node itself; then it has been taken.
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
        if got != payload(number, leg, echo.sequence, self.key) {
            return false;
        }
        let Some(ue) = self.ues.get_mut(number as usize) else { return true };
        if ue.links[leg as usize].answered(echo.sequence, now) {
            ue.lte_share = lte_share(&self.config.steering, &ue.links, &mut ue.switch, now);
        }
        true
    }

    /// The legs of a UE, as probes see them; `None` if there is no UE of that name.
    #[must_use]
    pub fn links(&self, ue: &str) -> Option<[LinkView; 2]> {
        let ue = self.ues.iter().find(|known| known.config.name == ue)?;
        let [lte, wifi] = &ue.links;
        Some([lte.view(Leg::Lte), wifi.view(Leg::Wifi)])
    }

    /// The share of LTE among a UE's packets now, percent; `None` if there is no UE of that name.
    #[must_use]
    pub fn lte_percent(&self, ue: &str) -> Option<f64> {
        let ue = self.ues.iter().find(|known| known.config.name == ue)?;
        Some(f64::from(ue.lte_share) * 100.0 / f64::from(super::steer::ONE))
    }
}

fn payload(number: u32, leg: Leg, sequence: u16, key: u64) -> [u8; PAYLOAD] {
    let mut b = [0; PAYLOAD];
    b[..4].copy_from_slice(&number.to_be_bytes());
    b[4] = leg as u8;
    b[6..8].copy_from_slice(&sequence.to_be_bytes());
    let token = SipHasher13::new_with_keys(key, key.rotate_left(17)).hash(&b[..8]);
    b[8..].copy_from_slice(&token.to_be_bytes());
    b
}
