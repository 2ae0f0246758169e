//! Algorithm 5 of RLC §IV-B as printed, with its three faults repaired.
//!
//! ```text
//!   f(queue, packet, capacity) = the better of
//!       take:       packet + f(queue, packet + 1, capacity − its groups)      lines 10 to 23
//!       don't take:          f(queue + 1, 0, capacity)                        line 24
//! ```
//!
//! Repaired: line 22 records the packet before line 17 advances the index; lines 9 and 31 memoise under the indices with
//! which the call was made; and the memoised value is the rest from there on, without the packets selected before.
//! Unchanged: groups are rounded per packet (`adjust_rbgs`); the last group may be short (the least group is limited to the
//! RBs left, and no packet of the same queue follows it); a tie is not taken; and the bound of a slice applies per queue.
//!
//! The recursion is implemented as the table that it fills, because its depth equals the number of packets. As in the exact
//! selection, a pair (packets, Σ quantum) is one integer, so that the inner loop runs over contiguous memory.

use super::super::knapsack::{Problem, Score};

/// The table, kept between TTIs only to reuse its memory.
#[derive(Debug, Clone, Default)]
pub struct PaperTable {
    narrow: Rows<i32>,
    wide: Rows<i64>,
    /// Whether the packet is taken, per packet and capacity.
    taken: Vec<bool>,
}

/// `f(queue + 1, 0, ·)`, `f(queue, packet + 1, ·)` and the row being filled.
#[derive(Debug, Clone, Default)]
struct Rows<T> {
    next_queue: Vec<T>,
    next_packet: Vec<T>,
    row: Vec<T>,
}

impl PaperTable {
    /// Fills `problem.packets`.
    pub fn solve(&mut self, problem: &mut Problem) {
        let width = usize::from(problem.room.rbs()) + 1;
        let packets: usize = problem.queues.iter().map(ExactSizeIterator::len).sum();
        self.taken.clear();
        self.taken.resize(packets * width, false);
        let quantum = problem.slices.iter().map(|s| i64::from(s.quantum).abs()).max().unwrap_or(0);
        // Larger than any Σ quantum.
        let weight = 2 * packets as i64 * quantum + 1;
        if (packets as i64).saturating_mul(weight + quantum) < i64::from(i32::MAX) {
            self.narrow.fill(problem, width, weight, &mut self.taken);
        } else {
            self.wide.fill(problem, width, weight, &mut self.taken);
        }
        self.extract_selection(problem, width);
    }

    fn extract_selection(&self, problem: &mut Problem, width: usize) {
        problem.packets.clear();
        problem.packets.resize(problem.queues.len(), 0);
        problem.short_at = None;
        let mut capacity = width - 1;
        for queue in problem.slices.iter().flat_map(|slice| slice.queues.clone()) {
            let needs = problem.queues[queue].clone();
            for packet in 0..needs.len() {
                if !self.taken[(needs.start + packet) * width + capacity] {
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

impl<T: Score> Rows<T> {
    fn fill(&mut self, problem: &Problem, width: usize, weight: i64, taken: &mut [bool]) {
        let Self { next_queue, next_packet, row } = self;
        next_queue.clear();
        next_queue.resize(width, T::default());
        for slice in problem.slices.iter().rev() {
            let each = T::of(weight + i64::from(slice.quantum));
            for queue in slice.queues.clone().rev() {
                let needs = problem.queues[queue].clone();
                // A packet beyond the slice's bound is not taken, nor is any packet after it.
                let within = |need: &u16| u32::from(rounded(problem, *need)) <= slice.most_rbs;
                let usable = problem.needs[needs.clone()].partition_point(within);
                next_packet.clone_from(next_queue);
                for packet in (0..usable).rev() {
                    row.clone_from(next_queue);
                    let (cost, least) = cost_of(problem, needs.start, packet);
                    let (cost, least) = (usize::from(cost).min(width), usize::from(least));
                    let taken = &mut taken[(needs.start + packet) * width..][..width];
                    // The short group is the RBs left, and ends the queue.
                    take(&mut row[..cost], std::iter::repeat(next_queue[0]), each, &mut taken[..cost], least);
                    take(&mut row[cost..], next_packet.iter().copied(), each, &mut taken[cost..], 0);
                    std::mem::swap(next_packet, row);
                }
                std::mem::swap(next_queue, next_packet);
            }
        }
    }
}

/// For capacities from `least` on: takes the packet where `after + each` is better than the present value.
fn take<T: Score>(row: &mut [T], after: impl Iterator<Item = T>, each: T, taken: &mut [bool], least: usize) {
    for ((best, taken), after) in row.iter_mut().zip(taken).zip(after).skip(least) {
        let with_packet = after + each;
        *taken = with_packet > *best;
        *best = with_packet.max(*best);
    }
}

fn rounded(problem: &Problem, rbs: u16) -> u16 {
    rbs.next_multiple_of(problem.room.rbg.max(1))
}

/// RBs that a packet adds to those of its queue before it, in whole groups, and the minimum it needs.
fn cost_of(problem: &Problem, start: usize, packet: usize) -> (u16, u16) {
    let need = problem.needs[start + packet];
    let before = packet.checked_sub(1).map_or(0, |before| rounded(problem, problem.needs[start + before]));
    (rounded(problem, need) - before, need.saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::super::super::Capacity;
    use super::super::super::knapsack::SliceBound;
    use super::*;
    use rand_chacha::ChaCha12Rng;
    use rand_core::{RngCore, SeedableRng};

    /// The definition in the module documentation, literally: packets, Σ quantum, and the selection.
    fn recursion(p: &Problem, queue: usize, packet: usize, capacity: usize) -> (u32, i64, Vec<usize>) {
        let Some(needs) = p.queues.get(queue) else { return (0, 0, Vec::new()) };
        let leave = || recursion(p, queue + 1, 0, capacity);
        if packet == needs.len() {
            return leave();
        }
        let slice = p.slices.iter().find(|s| s.queues.contains(&queue)).unwrap();
        let (cost, least) = cost_of(p, needs.start, packet);
        let beyond = u32::from(rounded(p, p.needs[needs.start + packet])) > slice.most_rbs;
        let left = leave();
        if beyond || capacity < usize::from(least) {
            return left;
        }
        let (count, quantum, mut taken) = match capacity.checked_sub(usize::from(cost)) {
            Some(rest) => recursion(p, queue, packet + 1, rest),
            None => recursion(p, queue + 1, 0, 0),
        };
        let take = (count + 1, quantum + i64::from(slice.quantum));
        if take > (left.0, left.1) {
            taken.push(queue);
            return (take.0, take.1, taken);
        }
        left
    }

    #[test]
    fn it_is_the_recursion_on_10000_instances() {
        let mut rng = ChaCha12Rng::seed_from_u64(11);
        let mut below = |n: u32| rng.next_u32() % n;
        let mut table = PaperTable::default();
        for instance in 0..10_000 {
            let mut p = Problem::default();
            p.clear(Capacity::new(1 + below(24) as u16, 1 + below(4) as u16));
            for _ in 0..1 + below(3) {
                let start = p.queues.len();
                for _ in 0..1 + below(2) {
                    let (from, mut need) = (p.needs.len(), 0);
                    for _ in 0..below(4) {
                        need += below(8) as u16;
                        p.needs.push(need.max(1));
                    }
                    p.queues.push(from..p.needs.len());
                }
                p.slices.push(SliceBound {
                    quantum: below(41) as i32 - 20,
                    most_rbs: below(40),
                    queues: start..p.queues.len(),
                });
            }
            let (_, _, taken) = recursion(&p, 0, 0, usize::from(p.room.rbs()));
            let mut expected = vec![0; p.queues.len()];
            taken.iter().for_each(|queue| expected[*queue] += 1);
            table.solve(&mut p);
            assert_eq!(p.packets, expected, "instance {instance}: {p:?}");
            // Also with 64-bit scores.
            let width = usize::from(p.room.rbs()) + 1;
            let narrow = table.taken.clone();
            table.taken.fill(false);
            table.wide.fill(&p, width, 1 << 40, &mut table.taken);
            assert_eq!(table.taken, narrow, "instance {instance}");
        }
    }
}
