//! Quanta: the balance of each slice in RBs. Their sum is 0 after every TTI.

use super::super::SliceConfig;

/// The quanta of all slices.
#[derive(Debug, Clone)]
pub struct Quanta {
    quanta: Vec<i32>,
    /// The rounding remainder of each slice, in RBs times the sum of all shares; and that sum.
    carry: Vec<i64>,
    sum: i64,
    credit: Vec<(i64, u16)>,
    /// RBs credited by share in this TTI, before the rounding correction.
    whole: Vec<i64>,
    /// RBs that a slice has paid for and that are not yet used.
    prepaid: u16,
}

impl Quanta {
    pub(super) fn new(slices: usize) -> Self {
        Self {
            quanta: vec![0; slices],
            carry: vec![0; slices],
            sum: 0,
            credit: Vec::new(),
            whole: vec![0; slices],
            prepaid: 0,
        }
    }

    pub(super) fn quanta(&self) -> &[i32] {
        &self.quanta
    }

    pub(super) fn get(&self, slice: usize) -> i32 {
        self.quanta.get(slice).copied().unwrap_or(0)
    }

    /// Line 1 of Algorithm 4: credits `rbs` RBs by share, in whole RBs. Each slice gets its part rounded down; the rest goes to
    /// the largest remainders. Remainders are carried over, so that shares hold exactly over time: a slice that got more than
    /// its part gets less later. Shares that sum to less than 100 % count relative to their sum.
    pub(super) fn credit(&mut self, slices: &[SliceConfig], rbs: u16) {
        let shares = || slices.iter().map(|s| s.share_parts() as i64);
        let sum: i64 = shares().sum();
        // Without any share, all slices are equal.
        let (sum, equal) = if sum > 0 { (sum, 0) } else { (slices.len().max(1) as i64, 1) };
        if std::mem::replace(&mut self.sum, sum) != sum {
            // Remainders relative to another sum are not comparable. Dropping them forgets a few RBs, which cancel out.
            self.carry.fill(0);
        }
        self.credit.clear();
        let mut left = i64::from(rbs);
        for (slice, share) in (0_u16..).zip(shares()).take(self.quanta.len()) {
            let at = usize::from(slice);
            let due = self.carry[at] + (share + equal) * i64::from(rbs);
            let whole = due.max(0) / sum;
            self.quanta[at] += whole as i32;
            self.carry[at] = due - whole * sum;
            left -= whole;
            self.credit.push((self.carry[at], slice));
            self.whole[at] = whole;
        }
        self.credit.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        // Remainders sum to 0 and are above -1 RB. A positive `left` is less than one RB per slice with a remainder, a negative
        // one less than one RB per slice with a negative remainder.
        for (_, slice) in self.credit.iter().take(left.max(0) as usize) {
            let at = usize::from(*slice);
            self.quanta[at] += 1;
            self.carry[at] -= sum;
        }
        for (_, slice) in self.credit.iter().rev() {
            let at = usize::from(*slice);
            let back = self.whole[at].min(-left.min(0));
            self.quanta[at] -= back as i32;
            self.carry[at] += back * sum;
            left += back;
        }
        self.prepaid = 0;
    }

    /// A slice uses RBs; RBs that were prepaid cost nothing.
    pub(super) fn charge(&mut self, slice: usize, rbs: u16) {
        let free = self.prepaid.min(rbs);
        self.prepaid -= free;
        if let Some(quantum) = self.quanta.get_mut(slice) {
            *quantum -= i32::from(rbs - free);
        }
    }

    /// A slice pays for RBs that remain unused.
    pub(super) fn charge_unused(&mut self, slice: usize, rbs: u16) {
        if let Some(quantum) = self.quanta.get_mut(slice) {
            *quantum -= i32::from(rbs);
        }
    }

    /// A slice pays for RBs that others may use.
    pub(super) fn prepay(&mut self, slice: usize, rbs: u16) {
        if let Some(quantum) = self.quanta.get_mut(slice) {
            *quantum -= i32::from(rbs);
            self.prepaid += rbs;
        }
    }

    /// Prepaid RBs that are not yet used.
    pub(super) fn prepaid(&self) -> u16 {
        self.prepaid
    }

    /// Transfers the positive quanta of idle slices to slices in debt, those with a backlog first; if none is in debt, to the
    /// slices with a backlog.
    pub(super) fn redistribute_idle(&mut self, is_idle: impl Fn(usize) -> bool) {
        let mut pot = 0;
        for (slice, quantum) in self.quanta.iter_mut().enumerate() {
            if *quantum > 0 && is_idle(slice) {
                pot += i64::from(std::mem::take(quantum));
            }
        }
        pot = self.raise_lowest(pot, 0, |slice| !is_idle(slice));
        pot = self.raise_lowest(pot, 0, &is_idle);
        pot = self.raise_lowest(pot, i64::MAX, |slice| !is_idle(slice));
        // No slice can take the rest: the first one keeps it so that the sum stays 0.
        if let Some(first) = self.quanta.first_mut() {
            *first += pot as i32;
        }
    }

    /// Raises the lowest quanta of the selected slices to a common level, at most `most`; returns the rest of the pot.
    fn raise_lowest(&mut self, mut pot: i64, most: i64, among: impl Fn(usize) -> bool) -> i64 {
        if pot == 0 {
            return 0;
        }
        self.credit.clear();
        let some = self.quanta.iter().enumerate().filter(|(slice, _)| among(*slice));
        self.credit.extend(some.map(|(slice, quantum)| (i64::from(*quantum), slice as u16)));
        self.credit.sort_unstable();
        for i in 0..self.credit.len() {
            let level = self.credit[i].0;
            let lowest = i as i64 + 1;
            let next = self.credit.get(i + 1).map_or(most, |(next, _)| most.min(*next));
            let step = next.saturating_sub(level).max(0).saturating_mul(lowest).min(pot);
            pot -= step;
            for (rank, (quantum, slice)) in (0..).zip(&mut self.credit[..=i]) {
                let add = step / lowest + i64::from(rank < step % lowest);
                *quantum += add;
                self.quanta[usize::from(*slice)] += add as i32;
            }
            if pot == 0 || next == most {
                break;
            }
        }
        pot
    }

    /// The slice with the highest quantum.
    pub(super) fn with_highest(&self, among: impl Fn(usize) -> bool) -> Option<usize> {
        let slices = (0..self.quanta.len()).filter(|slice| among(*slice));
        // On ties, the first slice.
        slices.rev().max_by_key(|slice| self.quanta[*slice])
    }

    /// Σ quantum, 0 between TTIs.
    pub(super) fn sum(&self) -> i64 {
        self.quanta.iter().map(|q| i64::from(*q)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slices(percents: &[f64]) -> Vec<SliceConfig> {
        percents.iter().enumerate().map(|(i, p)| SliceConfig::new(i.to_string(), *p)).collect()
    }

    #[test]
    fn credit_is_whole_and_exact_over_time() {
        let slices = slices(&[25.0, 75.0]);
        let mut quanta = Quanta::new(2);
        quanta.credit(&slices, 25);
        assert_eq!(quanta.quanta(), [6, 19]);
        for _ in 1..4 {
            quanta.credit(&slices, 25);
        }
        assert_eq!(quanta.quanta(), [25, 75]);
        let thirds = super::tests::slices(&[20.0, 20.0, 20.0]);
        let mut quanta = Quanta::new(3);
        for tti in 1..=300 {
            quanta.credit(&thirds, 25);
            assert_eq!(quanta.sum(), 25 * tti);
            assert!(quanta.quanta().iter().all(|q| (i64::from(*q) - 25 * tti / 3).abs() <= 1));
        }
        let mut quanta = Quanta::new(2);
        quanta.credit(&super::tests::slices(&[0.0, 0.0]), 25);
        assert_eq!(quanta.sum(), 25);
    }

    #[test]
    fn credit_never_lowers_a_quantum() {
        let slices = slices(&[12.0, 12.0, 5.0, 71.0]);
        let mut quanta = Quanta::new(4);
        let (mut total, mut before) = (0, vec![0; 4]);
        for tti in 0..2000_u16 {
            let rbs = tti * 7 % 5;
            quanta.credit(&slices, rbs);
            total += i64::from(rbs);
            assert_eq!(quanta.sum(), total);
            for (i, quantum) in quanta.quanta().iter().enumerate() {
                assert!(*quantum >= before[i], "TTI {tti}: {:?} after {before:?}", quanta.quanta());
                let due = total as f64 * [0.12, 0.12, 0.05, 0.71][i];
                assert!((-3.0..1.0).contains(&(f64::from(*quantum) - due)), "{quantum} for {due}");
            }
            before = quanta.quanta().to_vec();
        }
    }

    #[test]
    fn forfeits_of_idle_slices_raise_the_lowest_quanta() {
        let mut quanta = Quanta::new(4);
        quanta.quanta = vec![100, -60, -30, -10];
        quanta.redistribute_idle(|slice| slice == 0);
        assert_eq!(quanta.quanta(), [0, 0, 0, 0]);
        quanta.quanta = vec![40, -60, 0, 20];
        quanta.redistribute_idle(|slice| slice == 0);
        assert_eq!(quanta.quanta(), [0, -20, 0, 20]);
        quanta.quanta = vec![71, -60, 0, -11];
        quanta.redistribute_idle(|slice| slice == 0);
        assert_eq!(quanta.quanta(), [0, 0, 0, 0]);
        quanta.quanta = vec![-5, 5, 0, 0];
        quanta.redistribute_idle(|_| true);
        assert_eq!(quanta.quanta(), [0; 4]);
        // No slice is raised above 0 while any slice, even an idle one, is in debt.
        quanta.quanta = vec![30, 20, -40, 5];
        quanta.redistribute_idle(|slice| slice != 3);
        assert_eq!(quanta.quanta(), [0, 0, 0, 15]);
        quanta.quanta = vec![30, -40, -20, -5];
        quanta.redistribute_idle(|slice| slice < 2);
        assert_eq!(quanta.quanta(), [0, -35, 0, 0]);
        quanta.quanta = vec![20, 5, 0, 0];
        quanta.redistribute_idle(|_| true);
        assert_eq!(quanta.quanta(), [25, 0, 0, 0]);
    }

    #[test]
    fn credit_of_other_shares_is_of_this_tti() {
        let mut quanta = Quanta::new(2);
        for percents in [[33.3, 66.7], [0.5, 0.5], [0.0, 0.0], [0.0, 100.0], [1e-6, 0.0]] {
            let before = quanta.quanta().to_vec();
            quanta.credit(&slices(&percents), 25);
            for (quantum, before) in quanta.quanta().iter().zip(before) {
                assert!((0..=25).contains(&(quantum - before)), "{percents:?}: {quantum} after {before}");
            }
        }
        assert_eq!(quanta.sum(), 5 * 25);
    }

    #[test]
    fn prepaid_rbs_cost_nothing() {
        let mut quanta = Quanta::new(2);
        quanta.prepay(0, 5);
        quanta.charge(1, 3);
        assert_eq!((quanta.quanta(), quanta.prepaid()), (&[-5, 0][..], 2));
        quanta.charge(1, 4);
        assert_eq!((quanta.quanta(), quanta.prepaid()), (&[-5, -2][..], 0));
    }
}
