//! Algorithm 5 of RLC §IV-B as printed, with its three faults repaired.
//!
//! ```text
//!   f(queue, packet, capacity) = the better of
//!       take:       packet + f(queue, packet + 1, capacity − its groups)      lines 10 to 23
//!       don't take:          f(queue + 1, 0, capacity)                        line 24
//! ```
//!
//! Repaired: line 22 names the packet before line 17 moves on; lines 9 and 31 memoise under the indices the call
//! came with; and what is memoised is the rest from there on, not the packets chosen before. Kept: groups are
//! rounded per packet (`adjust_rbgs`), the last group may be short (the least group is limited to the RBs left;
//! nothing of the same queue follows it), a tie is not taken, and the bound of a slice holds per queue only.
//!
//! The recursion is written as the table it fills, for its depth is the number of packets.

use super::super::knapsack::Problem;

/// The table. Kept from one TTI to the next for its memory only.
#[derive(Debug, Clone, Default)]
pub struct Memo {
    /// `f(queue + 1, 0, ·)`, `f(queue, packet + 1, ·)` and the row being filled.
    next_queue: Vec<(u32, i64)>,
    next_packet: Vec<(u32, i64)>,
    row: Vec<(u32, i64)>,
    /// Whether the packet is taken, per packet and capacity.
    takes: Vec<bool>,
}

impl Memo {
    /// Fills `problem.packets`.
    pub fn solve(&mut self, problem: &mut Problem) {
        let width = usize::from(problem.room.rbs()) + 1;
        let packets: usize = problem.queues.iter().map(ExactSizeIterator::len).sum();
        self.takes.clear();
        self.takes.resize(packets * width, false);
        self.next_queue.clear();
        self.next_queue.resize(width, (0, 0));
        for slice in problem.slices.iter().rev() {
            for queue in slice.queues.clone().rev() {
                let needs = problem.queues[queue].clone();
                self.next_packet.clone_from(&self.next_queue);
                for packet in (0..needs.len()).rev() {
                    self.row.clone_from(&self.next_queue);
                    let (cost, least) = cost_of(problem, needs.start, packet);
                    let beyond =
                        u32::from(rounded(problem, problem.needs[needs.start + packet])) > slice.most_rbs;
                    for capacity in usize::from(least)..width {
                        let (count, quantum) = match capacity.checked_sub(usize::from(cost)) {
                            Some(left) => self.next_packet[left],
                            // The short group is what is left, and ends the queue.
                            None => self.next_queue[0],
                        };
                        let take = (count + 1, quantum + i64::from(slice.quantum));
                        if !beyond && take > self.row[capacity] {
                            self.row[capacity] = take;
                            self.takes[(needs.start + packet) * width + capacity] = true;
                        }
                    }
                    std::mem::swap(&mut self.next_packet, &mut self.row);
                }
                std::mem::swap(&mut self.next_queue, &mut self.next_packet);
            }
        }
        self.read_off(problem, width);
    }

    fn read_off(&self, problem: &mut Problem, width: usize) {
        problem.packets.clear();
        problem.packets.resize(problem.queues.len(), 0);
        problem.short_at = None;
        let mut capacity = width - 1;
        for queue in problem.slices.iter().flat_map(|slice| slice.queues.clone()) {
            let needs = problem.queues[queue].clone();
            for packet in 0..needs.len() {
                if !self.takes[(needs.start + packet) * width + capacity] {
                    break;
                }
                let (cost, _) = cost_of(problem, needs.start, packet);
                problem.packets[queue] += 1;
                let left = capacity.checked_sub(usize::from(cost));
                capacity = left.unwrap_or(0);
                if left.is_none() {
                    break;
                }
            }
        }
    }
}

fn rounded(problem: &Problem, rbs: u16) -> u16 {
    rbs.next_multiple_of(problem.room.rbg.max(1))
}

/// RBs a packet adds to those before it in its queue, in whole groups, and those it cannot do without.
fn cost_of(problem: &Problem, start: usize, packet: usize) -> (u16, u16) {
    let need = problem.needs[start + packet];
    let before = packet.checked_sub(1).map_or(0, |before| rounded(problem, problem.needs[start + before]));
    (rounded(problem, need) - before, need.saturating_sub(before))
}
