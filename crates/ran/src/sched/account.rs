//! Accounts of service among members who share by weight: who is owed, and who is ahead.
//!
//! ```text
//!   each TTI   due:   what the members share, by weight, nobody more than it can use and keep
//!              given: what each got
//!              lag += due − given           Σ lag = 0
//!
//!   −L ──────────────── 0 ─────── +B     who has nothing left to send keeps at most B;
//!     ahead            even      owed    what is beyond that is the others'
//! ```

/// RBs are counted in 2⁻¹⁶ RB.
pub(super) const RB: i64 = 1 << 16;
/// More than anybody can need: there is no bound.
pub(super) const UNBOUNDED: i64 = i64::MAX / 4;
/// TTIs without a backlog after which a member is owed nothing any more.
const KEEP_TTIS: u32 = 200;

/// Service that one slice, or one UE of a slice, is owed and was given, in [`RB`]s.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    /// Which; unique.
    pub(super) id: u32,
    pub(super) weight: i64,
    /// What it is owed; negative if it is ahead.
    pub(super) lag: i64,
    /// What it is due in this TTI, and what it was given.
    pub(super) due: i64,
    pub(super) given: i64,
    /// What would empty it at the start of this TTI; [`UNBOUNDED`] if a TTI cannot.
    pub(super) need: i64,
    /// Whether it has anything left to send, as far as is known.
    pub(super) unmet: bool,
    /// TTIs since it had a backlog.
    empty_ttis: u32,
}

impl Account {
    /// One that had no backlog yet.
    pub(super) fn new(id: u32, weight: i64) -> Self {
        Self { id, weight, empty_ttis: u32::MAX, ..Self::default() }
    }

    /// Its lag if the TTI ended now.
    pub(super) fn behind(&self) -> i64 {
        self.lag + self.due - self.given
    }

    /// A TTI begins in which it has no backlog, as far as is known.
    fn begin(&mut self) {
        (self.due, self.given, self.need, self.unmet) = (0, 0, 0, false);
        self.empty_ttis = self.empty_ttis.saturating_add(1);
    }

    /// It has a backlog of `need`.
    pub(super) fn wants(&mut self, need: i64) {
        self.need = self.need.saturating_add(need).min(UNBOUNDED);
        (self.unmet, self.empty_ttis) = (true, 0);
    }

    /// Whether it takes part: it has or had a backlog, or owes.
    pub(super) fn takes_part(&self) -> bool {
        self.empty_ttis <= KEEP_TTIS || self.lag < 0
    }

    /// What it may be owed when it has nothing left to send, with `most` for those who were not empty for long.
    fn keeps(&self, most: i64) -> i64 {
        if self.empty_ttis <= KEEP_TTIS { most } else { 0 }
    }
}

/// A TTI begins. Who has not had a backlog for long, and owes nothing, is owed nothing either.
pub(super) fn begin(accounts: &mut [Account]) {
    for account in accounts {
        account.begin();
        if !account.takes_part() {
            account.lag = 0;
        }
    }
}

/// How much each of those who take part may be owed: with all at that, one would be ahead by `limit`.
pub(super) fn most_owed(accounts: &[Account], limit: i64) -> i64 {
    let others = accounts.iter().filter(|a| a.takes_part()).count().saturating_sub(1);
    limit / (others as i64).max(1)
}

/// One claim on what is shared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    weight: i64,
    most: i64,
    place: usize,
}

/// What each is due before anything is given, if all of them get `total` together.
pub(super) fn reckon(accounts: &mut [Account], total: i64, keep: i64, claims: &mut Vec<Claim>) {
    divide(accounts, total, claims, |a| match a.need {
        UNBOUNDED => UNBOUNDED,
        need => a.keeps(keep) - a.lag + need,
    });
}

/// The TTI is over: what each was due in the end, and is owed from now on.
pub(super) fn settle(accounts: &mut [Account], keep: i64, claims: &mut Vec<Claim>) {
    let total = accounts.iter().map(|a| a.given).sum();
    divide(accounts, total, claims, |a| match a.unmet {
        true => UNBOUNDED,
        false => a.keeps(keep) - a.lag + a.given,
    });
    for account in accounts {
        account.lag = account.behind();
    }
}

/// Divides `total`, and what the sum of lags is off 0 by those who came and went, by weight; nobody gets more than
/// `most` says, and what that leaves is the others'.
fn divide(accounts: &mut [Account], total: i64, claims: &mut Vec<Claim>, most: impl Fn(&Account) -> i64) {
    claims.clear();
    let mut left = total;
    for (place, account) in accounts.iter_mut().enumerate().filter(|(_, a)| a.takes_part()) {
        left -= account.lag;
        account.due = 0;
        claims.push(Claim { weight: account.weight, most: most(account), place });
    }
    // Who has the least room for its weight is done first; what those with a weight leave is for the others equally.
    claims.sort_unstable_by(|a, b| {
        let room = |one: &Claim, other: &Claim| i128::from(one.most) * i128::from(other.weight.max(1));
        let weightless = (a.weight == 0).cmp(&(b.weight == 0));
        weightless.then(room(a, b).cmp(&room(b, a))).then(a.place.cmp(&b.place))
    });
    let mut weights: i128 = claims.iter().map(|c| i128::from(c.weight)).sum();
    for (claim, still) in claims.iter().zip((1..=claims.len() as i64).rev()) {
        let fair = match weights {
            0 => left / still,
            _ => (i128::from(left) * i128::from(claim.weight) / weights) as i64,
        };
        let due = fair.min(claim.most);
        weights -= i128::from(claim.weight);
        left -= due;
        accounts[claim.place].due = due;
    }
}
