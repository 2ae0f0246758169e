//! Quanta: what each slice is owed in RBs. Their sum is 0 after every TTI.

use super::super::SliceConfig;

/// The quanta of all slices.
#[derive(Debug, Clone)]
pub struct Bank {
    quanta: Vec<i32>,
    /// What rounding has kept from each slice, in RBs times the sum of all shares, and that sum.
    carry: Vec<i64>,
    sum: i64,
    credit: Vec<(i64, u16)>,
    /// RBs credited by share in this TTI, before what was left or too much.
    whole: Vec<i64>,
    /// RBs that a slice has paid for and nobody has used yet.
    prepaid: u16,
}

impl Bank {
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

    /// Line 1 of Algorithm 4: `rbs` RBs are credited by share. Whole RBs: each slice gets its part rounded down,
    /// and what is left goes to the largest remainders. A remainder is carried on, so that shares hold exactly
    /// over time; whoever got more than its part gives nothing back, but waits until its part has come. Shares
    /// that sum to less than 100 % are taken as parts of their sum.
    pub(super) fn credit(&mut self, slices: &[SliceConfig], rbs: u16) {
        let shares = || slices.iter().map(|s| s.share_parts() as i64);
        let sum: i64 = shares().sum();
        // Without any share all are equal.
        let (sum, equal) = if sum > 0 { (sum, 0) } else { (slices.len().max(1) as i64, 1) };
        if std::mem::replace(&mut self.sum, sum) != sum {
            // Parts of another sum are not worth the same: a few RBs, as many too many as too few, are forgotten.
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
        // Carries sum to 0 and are above -1 RB: what is left is less than one RB per slice that has a carry, and
        // what is too much is less than one per slice that waits.
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

    /// A slice uses RBs; those paid for already cost nothing.
    pub(super) fn charge(&mut self, slice: usize, rbs: u16) {
        let free = self.prepaid.min(rbs);
        self.prepaid -= free;
        if let Some(quantum) = self.quanta.get_mut(slice) {
            *quantum -= i32::from(rbs - free);
        }
    }

    /// A slice pays for RBs that nobody uses.
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

    /// RBs paid for that nobody used.
    pub(super) fn prepaid(&self) -> u16 {
        self.prepaid
    }

    /// What idle slices are owed goes to those that owe, to those with a backlog first; if nobody does, to those
    /// with a backlog.
    pub(super) fn forfeit(&mut self, is_idle: impl Fn(usize) -> bool) {
        let mut pot = 0;
        for (slice, quantum) in self.quanta.iter_mut().enumerate() {
            if *quantum > 0 && is_idle(slice) {
                pot += i64::from(std::mem::take(quantum));
            }
        }
        pot = self.raise(pot, 0, |slice| !is_idle(slice));
        pot = self.raise(pot, 0, &is_idle);
        pot = self.raise(pot, i64::MAX, |slice| !is_idle(slice));
        // Nobody is there to take it: the first keeps it for all.
        if let Some(first) = self.quanta.first_mut() {
            *first += pot as i32;
        }
    }

    /// Raises the lowest quanta among some to one level, `most` at most; returns what is left of the pot.
    fn raise(&mut self, mut pot: i64, most: i64, among: impl Fn(usize) -> bool) -> i64 {
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

    /// The slice that is owed most.
    pub(super) fn richest(&self, among: impl Fn(usize) -> bool) -> Option<usize> {
        let slices = (0..self.quanta.len()).filter(|slice| among(*slice));
        // The first of equals.
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
        let mut bank = Bank::new(2);
        bank.credit(&slices, 25);
        assert_eq!(bank.quanta(), [6, 19]);
        for _ in 1..4 {
            bank.credit(&slices, 25);
        }
        assert_eq!(bank.quanta(), [25, 75]);
        let thirds = super::tests::slices(&[20.0, 20.0, 20.0]);
        let mut bank = Bank::new(3);
        for tti in 1..=300 {
            bank.credit(&thirds, 25);
            assert_eq!(bank.sum(), 25 * tti);
            assert!(bank.quanta().iter().all(|q| (i64::from(*q) - 25 * tti / 3).abs() <= 1));
        }
        let mut bank = Bank::new(2);
        bank.credit(&super::tests::slices(&[0.0, 0.0]), 25);
        assert_eq!(bank.sum(), 25);
    }

    #[test]
    fn credit_takes_from_nobody() {
        let slices = slices(&[12.0, 12.0, 5.0, 71.0]);
        let mut bank = Bank::new(4);
        let (mut total, mut before) = (0, vec![0; 4]);
        for tti in 0..2000_u16 {
            let rbs = tti * 7 % 5;
            bank.credit(&slices, rbs);
            total += i64::from(rbs);
            assert_eq!(bank.sum(), total);
            for (i, quantum) in bank.quanta().iter().enumerate() {
                assert!(*quantum >= before[i], "TTI {tti}: {:?} after {before:?}", bank.quanta());
                let due = total as f64 * [0.12, 0.12, 0.05, 0.71][i];
                assert!((-3.0..1.0).contains(&(f64::from(*quantum) - due)), "{quantum} for {due}");
            }
            before = bank.quanta().to_vec();
        }
    }

    #[test]
    fn what_the_idle_are_owed_lifts_the_poorest() {
        let mut bank = Bank::new(4);
        bank.quanta = vec![100, -60, -30, -10];
        bank.forfeit(|slice| slice == 0);
        assert_eq!(bank.quanta(), [0, 0, 0, 0]);
        bank.quanta = vec![40, -60, 0, 20];
        bank.forfeit(|slice| slice == 0);
        assert_eq!(bank.quanta(), [0, -20, 0, 20]);
        bank.quanta = vec![71, -60, 0, -11];
        bank.forfeit(|slice| slice == 0);
        assert_eq!(bank.quanta(), [0, 0, 0, 0]);
        bank.quanta = vec![-5, 5, 0, 0];
        bank.forfeit(|_| true);
        assert_eq!(bank.quanta(), [0; 4]);
        // Nobody is lifted above 0 while anybody owes, be it an idle slice.
        bank.quanta = vec![30, 20, -40, 5];
        bank.forfeit(|slice| slice != 3);
        assert_eq!(bank.quanta(), [0, 0, 0, 15]);
        bank.quanta = vec![30, -40, -20, -5];
        bank.forfeit(|slice| slice < 2);
        assert_eq!(bank.quanta(), [0, -35, 0, 0]);
        bank.quanta = vec![20, 5, 0, 0];
        bank.forfeit(|_| true);
        assert_eq!(bank.quanta(), [25, 0, 0, 0]);
    }

    #[test]
    fn credit_of_other_shares_is_of_this_tti() {
        let mut bank = Bank::new(2);
        for percents in [[33.3, 66.7], [0.5, 0.5], [0.0, 0.0], [0.0, 100.0], [1e-6, 0.0]] {
            let before = bank.quanta().to_vec();
            bank.credit(&slices(&percents), 25);
            for (quantum, before) in bank.quanta().iter().zip(before) {
                assert!((0..=25).contains(&(quantum - before)), "{percents:?}: {quantum} after {before}");
            }
        }
        assert_eq!(bank.sum(), 5 * 25);
    }

    #[test]
    fn what_is_paid_for_is_free() {
        let mut bank = Bank::new(2);
        bank.prepay(0, 5);
        bank.charge(1, 3);
        assert_eq!((bank.quanta(), bank.prepaid()), (&[-5, 0][..], 2));
        bank.charge(1, 4);
        assert_eq!((bank.quanta(), bank.prepaid()), (&[-5, -2][..], 0));
    }
}
