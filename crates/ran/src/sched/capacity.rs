//! Free resource block groups.

/// Free RBs as whole groups, plus at most one shorter group.
///
/// ```text
///   25 RBs in groups of 2:  ▦▦ ▦▦ ▦▦ ▦▦ ▦▦ ▦▦ ▦▦ ▦▦ ▦▦ ▦▦ ▦▦ ▦▦ ▦      12 groups, short 1
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// RBs of a whole group.
    pub rbg: u16,
    /// Number of free whole groups.
    pub groups: u16,
    /// RBs of the free short group; 0 if there is none.
    pub short: u16,
}

impl Capacity {
    /// `rbs` RBs in groups of `rbg`, at least 1.
    #[must_use]
    #[inline]
    pub fn new(rbs: u16, rbg: u16) -> Self {
        let rbg = rbg.max(1);
        Self { rbg, groups: rbs / rbg, short: rbs % rbg }
    }

    /// Number of free RBs.
    #[must_use]
    #[inline]
    pub fn rbs(&self) -> u16 {
        self.groups * self.rbg + self.short
    }

    /// The number of RBs that [`take`](Self::take) would return.
    #[must_use]
    pub fn would_take(&self, rbs: u16) -> u16 {
        let mut copy = *self;
        copy.take(rbs)
    }

    /// Takes groups that cover `rbs` RBs with as few RBs as possible: the short group where it saves a whole one. Takes
    /// everything if less is free. Returns the RBs taken.
    #[inline]
    pub fn take(&mut self, rbs: u16) -> u16 {
        if rbs == 0 {
            return 0;
        }
        let (down, rest) = (rbs / self.rbg.max(1), rbs % self.rbg.max(1));
        let short = self.short > 0 && (1..=self.short).contains(&rest);
        let groups = down + u16::from(rest > 0 && !short);
        if groups > self.groups {
            // The short group helps where one whole group is missing.
            let taken = self.rbs();
            (self.groups, self.short) = (0, 0);
            return taken;
        }
        self.groups -= groups;
        let taken = groups * self.rbg + if short { self.short } else { 0 };
        if short {
            self.short = 0;
        }
        taken
    }

    /// Takes one group after another, as repeated requests for one RB would, until `rbs` RBs are covered or nothing is left.
    /// Returns the RBs taken.
    #[inline]
    pub fn take_by_groups(&mut self, rbs: u16) -> u16 {
        // The short group is taken first, because it saves a whole one.
        let short = if rbs == 0 { 0 } else { self.short };
        let groups = rbs.saturating_sub(short).div_ceil(self.rbg.max(1)).min(self.groups);
        self.short -= short;
        self.groups -= groups;
        short + groups * self.rbg
    }

    /// Splits off at most `rbs` RBs, rounded down to groups.
    #[inline]
    pub fn split(&mut self, rbs: u16) -> Self {
        let groups = (rbs / self.rbg.max(1)).min(self.groups);
        let rest = rbs - groups * self.rbg;
        let short = if rest >= self.short { self.short } else { 0 };
        self.groups -= groups;
        self.short -= short;
        Self { rbg: self.rbg, groups, short }
    }

    /// Returns the unused rest of a part that was split off.
    #[inline]
    pub fn put_back(&mut self, part: Self) {
        self.groups += part.groups;
        self.short += part.short;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_group_is_used_where_it_saves_a_whole_one() {
        let mut room = Capacity::new(25, 2);
        assert_eq!((room.groups, room.short, room.rbs()), (12, 1, 25));
        assert_eq!(room.take(18), 18);
        assert_eq!(room.take(3), 3, "one whole, one short");
        assert_eq!(room.take(1), 2, "the short one is gone");
        assert_eq!(room.take(5), 2, "all there is");
        assert_eq!(room.take(1), 0);
        let mut room = Capacity::new(25, 2);
        assert_eq!((room.take(25), room.rbs()), (25, 0));
        let mut room = Capacity::new(19, 16);
        assert_eq!((room.take(4), room.rbs()), (16, 3), "4 do not fit into a short group of 3");
        assert_eq!(room.take(2), 3);
        let mut room = Capacity::new(5, 4);
        assert_eq!(room.take(2), 4);
        assert_eq!(room.take(2), 1, "less than asked for");
    }

    #[test]
    fn taking_by_groups_equals_taking_single_rbs() {
        for (rbs, rbg, wanted) in
            (0..30).flat_map(|rbs| (1..6).flat_map(move |rbg| (0..35).map(move |n| (rbs, rbg, n))))
        {
            let (mut at_once, mut singly) = (Capacity::new(rbs, rbg), Capacity::new(rbs, rbg));
            let mut sum = 0;
            while sum < wanted && singly.rbs() > 0 {
                sum += singly.take(1);
            }
            assert_eq!(
                (at_once.take_by_groups(wanted), at_once),
                (sum, singly),
                "{wanted} of {rbs} by {rbg}"
            );
        }
    }

    #[test]
    fn a_part_is_rounded_down() {
        let mut room = Capacity::new(25, 2);
        assert_eq!(room.split(7).rbs(), 7, "the short one fits the odd RB");
        assert_eq!(room.split(7).rbs(), 6);
        assert_eq!(room.rbs(), 12);
        assert_eq!(room.split(100).rbs(), 12);
        let mut all = Capacity::new(25, 2);
        assert_eq!(all.split(25).rbs(), 25);
    }
}
