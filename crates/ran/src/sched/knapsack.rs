//! Selection of whole packets: a precedence-constrained knapsack over prefixes of queues, RLC §IV-B (1)–(4).
//!
//! ```text
//!   queue 1   ▤▤▤ ▤▤ ▤          the first k packets need need[k−1] RBs, rounded up to groups
//!   queue 2   ▤▤▤▤▤▤▤           choose k for each queue: as many packets as possible; on ties the largest
//!   queue 3   ▤ ▤ ▤ ▤           Σ quantum of the packets' slices; within the free groups
//! ```
//!
//! Solved exactly by `f(queue, capacity)`, the best score of the queues from here on, which does not depend on earlier
//! choices: O(N · C) for N packets and C groups. Two refinements, both exact:
//!
//! - **The short group.** The last group of a carrier may be smaller. It goes to at most one UE, so the state is
//!   (groups, short group free or not).
//! - **Bounds per slice.** A slice may take at most `most_rbs`. With several UEs in a slice, an inner f over the slice's
//!   groups yields the best score for each number of groups, and the outer f chooses among those.
//!
//! A score is one integer, packets · B + Σ quantum with B larger than any Σ quantum, in 32 bits where that is enough: the inner
//! loop is then a maximum of sums over contiguous memory. On ties, the first queue wins, that is the better ranked UE.

use super::{Capacity, Tti};
use std::ops::Range;

/// Constraints of one slice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SliceBound {
    /// Secondary score of each of its packets, after the number of packets.
    pub quantum: i32,
    /// Maximum number of RBs it may take.
    pub most_rbs: u32,
    /// Indices of its queues.
    pub queues: Range<usize>,
}

/// A selection problem and its solution, kept between TTIs only to reuse its memory.
#[derive(Debug, Clone, Default)]
pub struct Problem {
    /// Free groups.
    pub room: Capacity,
    /// The slices, in the order of their queues.
    pub slices: Vec<SliceBound>,
    /// For each queue, the range of its packets in `needs`.
    pub queues: Vec<Range<usize>>,
    /// RBs for the first 1, 2, 3 … packets of a queue, non-decreasing.
    pub needs: Vec<u16>,
    /// Solution: number of packets of each queue that are sent completely.
    pub packets: Vec<u32>,
    /// Solution: the queue that gets the short group.
    pub short_at: Option<usize>,
    narrow: Tables<i32>,
    wide: Tables<i64>,
}

/// Integer type of a score.
pub(super) trait Score: Copy + Ord + Default + std::ops::Add<Output = Self> {
    fn of(value: i64) -> Self;
}

impl Score for i32 {
    fn of(value: i64) -> Self {
        value as i32
    }
}

impl Score for i64 {
    fn of(value: i64) -> Self {
        value
    }
}

/// One way to serve a queue or a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Choice<T> {
    groups: u16,
    short: bool,
    /// Number of packets, for a way to serve a queue.
    packets: u32,
    score: T,
}

#[derive(Debug, Clone, Default)]
struct Tables<T> {
    /// Ways of the current queue.
    choices: Vec<Choice<T>>,
    /// Ways of all slices, and the range of each slice.
    slice_choices: Vec<Choice<T>>,
    of_slice: Vec<Range<usize>>,
    /// The inner f of every slice with several UEs, and the start of each.
    inner: Vec<T>,
    inner_at: Vec<usize>,
    /// The outer f.
    outer: Vec<T>,
}

/// Layout of a table of f: per step, one row without the short group and, if there is one, a row with it.
#[derive(Debug, Clone, Copy)]
struct Rows {
    width: usize,
    rows_per_step: usize,
}

impl Rows {
    fn step(self) -> usize {
        self.width * self.rows_per_step
    }

    fn at(self, step: usize, short: bool) -> usize {
        self.step() * step + if short { self.width } else { 0 }
    }
}

impl Problem {
    /// Resets the problem for another TTI.
    pub fn clear(&mut self, room: Capacity) {
        self.room = room;
        self.slices.clear();
        self.queues.clear();
        self.needs.clear();
    }

    /// Appends a queue with the RBs its first packets need beyond `granted`, each packet counted as `inflation` times as
    /// large; at most as many packets as the cell can carry.
    pub fn push_queue(&mut self, tti: &Tti<'_>, queue: usize, granted: u16, inflation: f64) {
        let start = self.needs.len();
        let row = tti.queues.get(queue).map_or(&[][..], |q| tti.table.row(q.mcs));
        let (mut sum, mut at) = (0_u64, 0);
        for size in tti.sizes_of(queue) {
            sum += u64::from(*size);
            let bytes = if inflation > 1.0 { (sum as f64 * inflation).ceil() as u64 } else { sum };
            let Some(rbs) = rbs_from(row, bytes, at) else { break };
            at = rbs;
            self.needs.push((rbs as u16).saturating_sub(granted));
        }
        self.queues.push(start..self.needs.len());
    }

    /// Removes the packets of the last queue that, with those before them, need more than `most` RBs.
    pub fn cut_queue(&mut self, most: u16) {
        if let Some(queue) = self.queues.last_mut() {
            let fit = self.needs[queue.clone()].partition_point(|need| *need <= most);
            queue.end = queue.start + fit;
            self.needs.truncate(queue.end);
        }
    }

    /// RBs needed by the first `packets` packets of a queue.
    #[must_use]
    pub fn rbs_of(tti: &Tti<'_>, queue: usize, packets: usize) -> u16 {
        let bytes: u64 = tti.sizes_of(queue).iter().take(packets).map(|size| u64::from(*size)).sum();
        let row = tti.queues.get(queue).map_or(&[][..], |q| tti.table.row(q.mcs));
        rbs_from(row, bytes, 0).unwrap_or(row.len().saturating_sub(1)) as u16
    }

    /// Solves the problem.
    pub fn solve(&mut self) {
        self.packets.clear();
        self.packets.resize(self.queues.len(), 0);
        self.short_at = None;
        let most = self.most_packets();
        let quantum = self.slices.iter().map(|s| i64::from(s.quantum).abs()).max().unwrap_or(0);
        let weight = 2 * most * quantum + 1;
        if most.saturating_mul(weight + quantum) < i64::from(i32::MAX) {
            let mut tables = std::mem::take(&mut self.narrow);
            self.solve_in(&mut tables, weight);
            self.narrow = tables;
        } else {
            let mut tables = std::mem::take(&mut self.wide);
            self.solve_in(&mut tables, weight);
            self.wide = tables;
        }
    }

    /// Upper bound of the number of packets in any solution.
    fn most_packets(&self) -> i64 {
        let (mut all, mut density) = (0, 0.0_f64);
        for queue in &self.queues {
            for (k, need) in (1..).zip(&self.needs[queue.clone()]) {
                density = density.max(f64::from(k) / f64::from((*need).max(1)));
            }
            all += queue.len() as i64;
        }
        // No solution has more packets per RB than the densest queue.
        all.min((density * f64::from(self.room.rbs())) as i64 + 1)
    }

    fn solve_in<T: Score>(&mut self, tables: &mut Tables<T>, weight: i64) {
        let rows = self.rows(usize::from(self.room.groups) + 1);
        let slices = self.slices.len();
        tables.outer.clear();
        tables.outer.resize(rows.step() * (slices + 1), T::default());
        tables.inner.clear();
        tables.inner_at.clear();
        tables.slice_choices.clear();
        tables.of_slice.clear();
        // From the last slice to the first, so that ties favour the first.
        for (step, slice) in self.slices.iter().rev().enumerate() {
            let start = tables.slice_choices.len();
            self.choices_of_slice(slice, weight, tables);
            tables.of_slice.push(start..tables.slice_choices.len());
            let (old, new) = tables.outer[rows.at(step, false)..].split_at_mut(rows.step());
            relax_all(old, new, rows, &tables.slice_choices[start..]);
        }
        let (mut left, mut short) = (rows.width - 1, rows.rows_per_step > 1);
        for index in 0..slices {
            let step = slices - 1 - index;
            let choices = &tables.slice_choices[tables.of_slice[step].clone()];
            let Some(choice) = trace_back(&tables.outer, rows, step, choices, left, short) else { continue };
            left -= usize::from(choice.groups);
            short &= !choice.short;
            self.assign_packets(index, step, choice, weight, tables);
        }
    }

    fn rows(&self, width: usize) -> Rows {
        Rows { width, rows_per_step: if self.room.short > 0 { 2 } else { 1 } }
    }

    /// Appends every way to serve a slice that is better than all cheaper ones, by increasing score.
    fn choices_of_slice<T: Score>(&self, slice: &SliceBound, weight: i64, tables: &mut Tables<T>) {
        tables.inner_at.push(tables.inner.len());
        if slice.queues.len() == 1 {
            self.choices_of_queue(slice, slice.queues.start, weight, &mut tables.choices);
            tables.slice_choices.extend_from_slice(&tables.choices);
            return;
        }
        let rows = self.rows(self.inner_width(slice));
        let base = tables.inner.len();
        tables.inner.resize(base + rows.step() * (slice.queues.len() + 1), T::default());
        for (step, queue) in slice.queues.clone().rev().enumerate() {
            self.choices_of_queue(slice, queue, weight, &mut tables.choices);
            let (old, new) = tables.inner[base + rows.at(step, false)..].split_at_mut(rows.step());
            relax_all(old, new, rows, &tables.choices);
        }
        let last = &tables.inner[base + rows.at(slice.queues.len(), false)..];
        let (whole, with_short) = last.split_at(rows.width);
        let start = tables.slice_choices.len();
        let mut best = [T::default(); 2];
        for (groups, score) in (0..).zip(whole) {
            if *score > best[0] {
                best[0] = *score;
                tables.slice_choices.push(Choice { groups, short: false, packets: 0, score: *score });
            }
            let rbs = u32::from(groups) * u32::from(self.room.rbg) + u32::from(self.room.short);
            if let Some(score) = with_short.get(usize::from(groups))
                && rbs <= slice.most_rbs
                && *score > best[0].max(best[1])
            {
                best[1] = *score;
                tables.slice_choices.push(Choice { groups, short: true, packets: 0, score: *score });
            }
        }
        tables.slice_choices[start..].sort_unstable_by_key(|choice| choice.score);
    }

    /// Number of groups a slice may take, plus one for none.
    fn inner_width(&self, slice: &SliceBound) -> usize {
        let most = slice.most_rbs / u32::from(self.room.rbg.max(1));
        u32::from(self.room.groups).min(most) as usize + 1
    }

    /// Lists every way to serve a queue, by increasing number of packets.
    fn choices_of_queue<T: Score>(
        &self,
        slice: &SliceBound,
        queue: usize,
        weight: i64,
        choices: &mut Vec<Choice<T>>,
    ) {
        let Capacity { rbg, groups: all, short } = self.room;
        let rbg = rbg.max(1);
        let each = weight + i64::from(slice.quantum);
        choices.clear();
        for (packets, need) in (1..).zip(&self.needs[self.queues[queue].clone()]) {
            let (down, rest) = (need / rbg, need % rbg);
            let score = T::of(i64::from(packets) * each);
            let mut offer = |groups: u16, with_short: bool| {
                let rbs = u32::from(groups) * u32::from(rbg) + if with_short { u32::from(short) } else { 0 };
                if groups > all || rbs > slice.most_rbs {
                    return false;
                }
                // More packets in the same groups replace fewer; such a way is one of the last two.
                let same = |choice: &Choice<T>| choice.groups == groups && choice.short == with_short;
                let at = choices.len().saturating_sub(2);
                if let Some(i) = choices[at..].iter().position(same) {
                    choices.remove(at + i);
                }
                choices.push(Choice { groups, short: with_short, packets, score });
                true
            };
            let whole = offer(down + u16::from(rest > 0), false);
            let saved = short > 0 && (1..=short).contains(&rest) && offer(down, true);
            if !whole && !saved {
                break;
            }
        }
    }

    /// Translates the chosen way of a slice into packets of its queues.
    fn assign_packets<T: Score>(
        &mut self,
        index: usize,
        step: usize,
        choice: Choice<T>,
        weight: i64,
        tables: &mut Tables<T>,
    ) {
        let slice = self.slices[index].clone();
        if slice.queues.len() == 1 {
            self.assign_to_queue(slice.queues.start, choice);
            return;
        }
        let rows = self.rows(self.inner_width(&slice));
        let base = tables.inner_at[step];
        let (mut left, mut short) = (usize::from(choice.groups), choice.short);
        for queue in slice.queues.clone() {
            self.choices_of_queue(&slice, queue, weight, &mut tables.choices);
            let step = slice.queues.end - 1 - queue;
            let table = &tables.inner[base..];
            let Some(choice) = trace_back(table, rows, step, &tables.choices, left, short) else { continue };
            left -= usize::from(choice.groups);
            short &= !choice.short;
            self.assign_to_queue(queue, choice);
        }
    }

    fn assign_to_queue<T>(&mut self, queue: usize, choice: Choice<T>) {
        self.packets[queue] = choice.packets;
        if choice.short {
            self.short_at = Some(queue);
        }
    }
}

/// The smallest index of a row from `at` on that holds `bytes`; starts from a proportional guess.
fn rbs_from(row: &[u32], bytes: u64, at: usize) -> Option<usize> {
    let last = row.len().checked_sub(1)?;
    let most = u64::from(row[last]);
    if bytes > most {
        return None;
    }
    let mut n = ((bytes * last as u64 / most.max(1)) as usize).clamp(at, last);
    while n > at && u64::from(row[n - 1]) >= bytes {
        n -= 1;
    }
    while u64::from(row[n]) < bytes {
        n += 1;
    }
    Some(n)
}

/// One step of f: `new` from `old`, each a row without the short group and perhaps one with it.
fn relax_all<T: Score>(old: &[T], new: &mut [T], rows: Rows, choices: &[Choice<T>]) {
    new[..rows.step()].copy_from_slice(old);
    let (old_whole, old_short) = old.split_at(rows.width);
    let (new_whole, new_short) = new[..rows.step()].split_at_mut(rows.width);
    for choice in choices {
        let cost = usize::from(choice.groups);
        if choice.short {
            relax(old_whole, new_short, cost, choice.score);
        } else {
            relax(old_whole, new_whole, cost, choice.score);
            relax(old_short, new_short, cost, choice.score);
        }
    }
}

/// `new[c] = max(new[c], old[c − cost] + score)`.
fn relax<T: Score>(old: &[T], new: &mut [T], cost: usize, score: T) {
    for (to, from) in new.get_mut(cost..).unwrap_or_default().iter_mut().zip(old) {
        *to = (*to).max(*from + score);
    }
}

/// The way chosen in step `step` with so much capacity left: the one with the highest score if several lead there; `None` if
/// taking nothing does.
fn trace_back<T: Score>(
    table: &[T],
    rows: Rows,
    step: usize,
    choices: &[Choice<T>],
    left: usize,
    short: bool,
) -> Option<Choice<T>> {
    let best = table[rows.at(step + 1, short) + left];
    let leads_there = |choice: &&Choice<T>| {
        let cost = usize::from(choice.groups);
        cost <= left
            && (short || !choice.short)
            && table[rows.at(step, short && !choice.short) + left - cost] + choice.score == best
    };
    choices.iter().rev().find(leads_there).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha12Rng;
    use rand_core::{RngCore, SeedableRng};

    /// Packets and Σ quantum of a selection (`k` packets of each queue, at most one queue with the short group), if feasible.
    fn evaluate(p: &Problem, k: &[u32], short_at: Option<usize>) -> Option<(u32, i64)> {
        let rbg = p.room.rbg;
        let (mut packets, mut quantum, mut groups) = (0, 0, 0);
        for slice in &p.slices {
            let (mut of_slice, mut rbs) = (0, 0);
            for queue in slice.queues.clone() {
                let Some(last) = (k[queue] as usize).checked_sub(1) else { continue };
                let need = p.needs[p.queues[queue].clone()][last];
                let with_short = short_at == Some(queue);
                let short = if with_short { p.room.short } else { 0 };
                let whole = need.saturating_sub(short).div_ceil(rbg);
                of_slice += whole;
                rbs += u32::from(whole * rbg + short);
                packets += k[queue];
                quantum += i64::from(k[queue]) * i64::from(slice.quantum);
            }
            if rbs > slice.most_rbs {
                return None;
            }
            groups += of_slice;
        }
        (groups <= p.room.groups && (short_at.is_none() || p.room.short > 0)).then_some((packets, quantum))
    }

    fn brute_force(p: &Problem) -> (u32, i64) {
        let mut best = (0, 0);
        let mut k = vec![0; p.queues.len()];
        loop {
            for short_at in std::iter::once(None).chain((0..k.len()).map(Some)) {
                best = evaluate(p, &k, short_at).map_or(best, |score| best.max(score));
            }
            let Some(i) = (0..k.len()).find(|i| (k[*i] as usize) < p.queues[*i].len()) else { return best };
            k[i] += 1;
            k[..i].fill(0);
        }
    }

    fn random(rng: &mut ChaCha12Rng) -> Problem {
        let mut below = |n: u32| rng.next_u32() % n;
        let mut p = Problem::default();
        let rbg = [1, 1, 2, 3, 4][below(5) as usize];
        p.room = Capacity::new(1 + below(28) as u16, rbg);
        for _ in 0..1 + below(3) {
            let start = p.queues.len();
            for _ in 0..1 + below(3).min(below(3)) {
                let (from, mut need) = (p.needs.len(), 0);
                for _ in 0..below(5) {
                    need += below(9) as u16;
                    p.needs.push(need.max(1));
                }
                p.queues.push(from..p.needs.len());
            }
            p.slices.push(SliceBound {
                quantum: below(41) as i32 - 20,
                most_rbs: if below(2) == 0 { below(30) } else { 1000 },
                queues: start..p.queues.len(),
            });
        }
        p
    }

    #[test]
    fn it_equals_brute_force_on_20000_instances() {
        let mut rng = ChaCha12Rng::seed_from_u64(7);
        let mut with_short = 0;
        for instance in 0..20_000 {
            let mut p = random(&mut rng);
            p.solve();
            let best = brute_force(&p);
            let found = evaluate(&p, &p.packets, p.short_at);
            assert_eq!(found, Some(best), "instance {instance}: {p:?}");
            let mut tables = Tables::<i64>::default();
            let narrow = (p.packets.clone(), p.short_at.take());
            p.packets.fill(0);
            p.solve_in(&mut tables, 1 << 40);
            assert_eq!(narrow, (p.packets.clone(), p.short_at), "64 bits choose the same");
            with_short += u32::from(p.short_at.is_some());
        }
        assert!(with_short > 1000, "the short group matters: {with_short}");
    }

    #[test]
    fn ties_go_to_the_first() {
        let mut p = Problem { room: Capacity::new(4, 1), ..Problem::default() };
        for i in 0..3 {
            p.needs.push(4);
            p.queues.push(i..i + 1);
            p.slices.push(SliceBound { most_rbs: 100, queues: i..i + 1, ..SliceBound::default() });
        }
        p.solve();
        assert_eq!(p.packets, [1, 0, 0]);
        p.slices = vec![SliceBound { most_rbs: 100, queues: 0..3, ..SliceBound::default() }];
        p.solve();
        assert_eq!(p.packets, [1, 0, 0]);
        p.clear(Capacity::new(4, 1));
        p.solve();
        assert_eq!(p.packets, Vec::<u32>::new());
    }
}
