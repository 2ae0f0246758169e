//! The receiver of acknowledged mode, TS 38.322 §5.2.3.2 and §5.3.4.

use super::super::RlcStats;
use super::super::config::{AmConfig, ms};
use super::super::reassembly::{BufferPool, Outcome, Partial};
use super::{after, ahead};
use anabranch_element::time::Instant;
use anabranch_wire::rlc::{AmHeader, AmSn, Nack, SO_END, StatusWriter};
use std::collections::VecDeque;

#[derive(Debug, Clone)]
pub(super) struct Rx {
    config: AmConfig,
    sn: AmSn,
    /// RX_Next: the number of the first of `slots`.
    next: u32,
    /// SDUs from RX_Next up to, but excluding, RX_Next_Highest.
    slots: VecDeque<Slot>,
    /// RX_Highest_Status, as a distance from RX_Next.
    highest_status: u32,
    /// RX_Next_Status_Trigger, and the expiry time of t-Reassembly.
    reassembly: Option<(u32, Instant)>,
    /// A STATUS PDU is to be sent.
    wanted: bool,
    /// A poll for this number is deferred until the number can be reported.
    delayed_poll: Option<u32>,
    /// Expiry time of t-StatusProhibit.
    prohibited_until: Instant,
    pub(super) stats: RlcStats,
}

#[derive(Debug, Clone)]
enum Slot {
    Missing,
    Partial(Partial),
    Done,
}

impl Rx {
    pub(super) fn new(config: AmConfig) -> Self {
        Self {
            config,
            sn: config.sn_bits.0,
            next: 0,
            slots: VecDeque::new(),
            highest_status: 0,
            reassembly: None,
            wanted: false,
            delayed_poll: None,
            prohibited_until: Instant::ZERO,
            stats: RlcStats::default(),
        }
    }

    pub(super) fn receive(
        &mut self,
        header: &AmHeader,
        data: &[u8],
        now: Instant,
        pool: &mut BufferPool,
        up: &mut impl FnMut(Vec<u8>, &mut BufferPool),
    ) {
        let distance = ahead(header.sn, self.next, self.sn);
        let kept = distance < self.config.window() && self.place(distance, header, data, pool, up);
        if header.poll {
            // §5.3.4.
            let beyond = distance >= self.config.window();
            if !kept
                || beyond
                || ahead(header.sn, self.next, self.sn) < self.highest_status
                || self.is_past(header.sn)
            {
                self.wanted = true;
            } else {
                self.delayed_poll = Some(header.sn);
            }
        }
        if kept {
            self.restart_reassembly(now);
        }
        self.check_delayed_poll();
    }

    /// Stores a segment; returns whether it contained new bytes.
    fn place(
        &mut self,
        distance: u32,
        header: &AmHeader,
        data: &[u8],
        pool: &mut BufferPool,
        up: &mut impl FnMut(Vec<u8>, &mut BufferPool),
    ) -> bool {
        let index = distance as usize;
        while self.slots.len() <= index {
            self.slots.push_back(Slot::Missing);
        }
        let slot = &mut self.slots[index];
        if matches!(slot, Slot::Missing) {
            *slot = Slot::Partial(Partial::new(pool));
        }
        let Slot::Partial(partial) = slot else {
            self.stats.stale_pdus += 1;
            return false;
        };
        match partial.insert(header.offset, data, header.segment.to_end()) {
            Outcome::Duplicate => {
                self.stats.stale_pdus += 1;
                return false;
            }
            Outcome::Refused => {
                self.stats.malformed_pdus += 1;
                return false;
            }
            Outcome::Kept => return true,
            Outcome::Whole => {}
        }
        if let Slot::Partial(partial) = std::mem::replace(slot, Slot::Done) {
            self.stats.delivered_sdus += 1;
            let sdu = partial.into_bytes(pool);
            up(sdu, pool);
        }
        // §5.2.3.2.3: the state variables advance over completed SDUs.
        self.skip_done();
        while matches!(self.slots.front(), Some(Slot::Done)) {
            self.slots.pop_front();
            self.next = after(self.next, 1, self.sn);
            self.highest_status = self.highest_status.saturating_sub(1);
        }
        true
    }

    fn skip_done(&mut self) {
        while matches!(self.slots.get(self.highest_status as usize), Some(Slot::Done)) {
            self.highest_status += 1;
        }
    }

    /// Whether the number was delivered and has left the window.
    fn is_past(&self, number: u32) -> bool {
        ahead(number, self.next, self.sn) >= self.sn.modulus() / 2
    }

    /// Whether an SDU between `index` and RX_Next_Highest is missing, or lacks bytes before received ones.
    fn has_gap(&self, index: u32) -> bool {
        let behind = (self.slots.len() as u32).saturating_sub(index);
        behind > 1
            || (behind == 1
                && matches!(self.slots.get(index as usize), Some(Slot::Partial(p)) if p.has_gap()))
    }

    /// The end of §5.2.3.2.3.
    fn restart_reassembly(&mut self, now: Instant) {
        if let Some((trigger, _)) = self.reassembly {
            let distance = ahead(trigger, self.next, self.sn);
            let reached =
                distance == 0 || distance > self.config.window() || (distance == 1 && !self.has_gap(0));
            if reached {
                self.reassembly = None;
            }
        }
        if self.reassembly.is_none() && self.has_gap(0) {
            self.start_reassembly(now);
        }
    }

    fn start_reassembly(&mut self, now: Instant) {
        let highest = after(self.next, self.slots.len() as u32, self.sn);
        self.reassembly = Some((highest, now + ms(self.config.t_reassembly_ms)));
    }

    fn check_delayed_poll(&mut self) {
        if let Some(number) = self.delayed_poll
            && (self.is_past(number) || ahead(number, self.next, self.sn) < self.highest_status)
        {
            self.delayed_poll = None;
            self.wanted = true;
        }
    }

    /// §5.2.3.2.4.
    pub(super) fn on_timeout(&mut self, now: Instant) {
        let Some((trigger, at)) = self.reassembly else { return };
        if at > now {
            return;
        }
        self.reassembly = None;
        self.highest_status = ahead(trigger, self.next, self.sn).min(self.slots.len() as u32);
        self.skip_done();
        if self.has_gap(self.highest_status) {
            self.start_reassembly(now);
        }
        self.wanted = true;
        self.check_delayed_poll();
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.reassembly.map(|(_, at)| at)
    }

    /// Upper bound of the bytes of the STATUS PDU that is now due.
    pub(super) fn status_bytes(&self, now: Instant) -> u64 {
        if !self.wanted || now < self.prohibited_until {
            return 0;
        }
        let losses =
            self.slots.iter().take(self.highest_status as usize).filter(|s| !matches!(s, Slot::Done));
        3 + 8 * losses.count() as u64
    }

    /// Appends the STATUS PDU that is due, if one is; returns its length.
    pub(super) fn pull_status(&mut self, room: usize, now: Instant, out: &mut Vec<u8>) -> usize {
        if !self.wanted || now < self.prohibited_until {
            return 0;
        }
        let Some(mut writer) = StatusWriter::new(self.sn, room, out) else { return 0 };
        let mut reported = self.highest_status;
        let mut index = 0;
        // At least the first loss must be reported, however small the block; otherwise it would never be repaired.
        let mut first = true;
        while index < self.highest_status {
            let sn = after(self.next, index, self.sn);
            let (fits, sdus) = match &self.slots[index as usize] {
                Slot::Done => (true, 1),
                Slot::Missing => {
                    let most = (self.highest_status - index).min(255) as usize;
                    let run = self.slots.iter().skip(index as usize).take(most);
                    let count = run.take_while(|s| matches!(s, Slot::Missing)).count() as u8;
                    if writer.push(Nack { sn, bytes: None, count }) {
                        (true, u32::from(count))
                    } else {
                        (count > 1 && first && writer.push(Nack { sn, bytes: None, count: 1 }), 1)
                    }
                }
                Slot::Partial(partial) => {
                    let mut said = !first;
                    let all = partial.missing().all(|(from, to)| {
                        let last = to.map_or(SO_END, |to| to - 1);
                        let fits = writer.push(Nack { sn, bytes: Some((from, last)), count: 1 });
                        said |= fits;
                        fits
                    });
                    // Requesting the whole SDU costs more air time than its missing bytes, but less of this PDU.
                    (all || !said && writer.push(Nack { sn, bytes: None, count: 1 }), 1)
                }
            };
            if !fits {
                reported = index;
                break;
            }
            first &= matches!(self.slots[index as usize], Slot::Done);
            index += sdus;
        }
        self.wanted = false;
        self.prohibited_until = now + ms(self.config.t_status_prohibit_ms);
        self.stats.status_pdus += 1;
        writer.finish(after(self.next, reported, self.sn))
    }
}
