//! Service accounts of members who share a resource by weight: who is owed service, and who is ahead.
//!
//! ```text
//!   each TTI   due:   the share of each member by weight, at most what it can use and keep
//!              given: the service it got
//!              lag += due − given           Σ lag = 0
//!
//!   −L ──────────────── 0 ─────── +B     a member without backlog keeps at most B;
//!     ahead            even      owed    the excess goes to the others
//! ```

/// One RB; accounts are kept in units of 2⁻¹⁶ RB.
pub(super) const RB: i64 = 1 << 16;
/// A need without bound.
pub(super) const UNBOUNDED: i64 = i64::MAX / 4;
/// Number of TTIs without a backlog after which a member loses what it is owed.
const LAG_MEMORY_TTIS: u32 = 200;

/// Account of one slice, or of one UE of a slice, in units of 1/[`RB`] RB.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Account {
    /// Unique identity of the member.
    pub(super) id: u32,
    pub(super) weight: i64,
    /// Service owed; negative if the member is ahead.
    pub(super) lag: i64,
    /// Service due in this TTI, and service given.
    pub(super) due: i64,
    pub(super) served: i64,
    /// Service that would empty the member at the start of this TTI; [`UNBOUNDED`] if one TTI is not enough.
    pub(super) need: i64,
    /// Whether the member has data left to send.
    pub(super) has_backlog: bool,
    /// TTIs since the member last had a backlog.
    empty_ttis: u32,
}

impl Account {
    /// Account of a member that had no backlog yet.
    pub(super) fn new(id: u32, weight: i64) -> Self {
        Self { id, weight, empty_ttis: u32::MAX, ..Self::default() }
    }

    /// The lag if the TTI ended now.
    pub(super) fn projected_lag(&self) -> i64 {
        self.lag + self.due - self.served
    }

    /// Starts a TTI; the member has no backlog until [`add_need`](Self::add_need) is called.
    fn start_tti(&mut self) {
        (self.due, self.served, self.need, self.has_backlog) = (0, 0, 0, false);
        self.empty_ttis = self.empty_ttis.saturating_add(1);
    }

    /// Adds a backlog of `need`.
    pub(super) fn add_need(&mut self, need: i64) {
        self.need = self.need.saturating_add(need).min(UNBOUNDED);
        (self.has_backlog, self.empty_ttis) = (true, 0);
    }

    /// Whether the member takes part: it has, or recently had, a backlog, or it owes service.
    pub(super) fn participates(&self) -> bool {
        self.empty_ttis <= LAG_MEMORY_TTIS || self.lag < 0
    }

    /// Upper bound of the lag once the member has nothing left to send: `max` if it recently had a backlog, otherwise 0.
    fn lag_limit(&self, max: i64) -> i64 {
        if self.empty_ttis <= LAG_MEMORY_TTIS { max } else { 0 }
    }
}

/// Starts a TTI. A member that does not take part is no longer owed anything.
pub(super) fn start_tti(accounts: &mut [Account]) {
    for account in accounts {
        account.start_tti();
        if !account.participates() {
            account.lag = 0;
        }
    }
}

/// Upper bound of the lag of each participating member: if all but one are at this bound, the last is ahead by `limit`.
pub(super) fn max_lag(accounts: &[Account], limit: i64) -> i64 {
    let others = accounts.iter().filter(|a| a.participates()).count().saturating_sub(1);
    limit / (others as i64).max(1)
}

/// The claim of one member in a division.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    weight: i64,
    max: i64,
    index: usize,
}

/// Sets `due` of each member before anything is given, if all of them together get `total`.
pub(super) fn compute_due(accounts: &mut [Account], total: i64, max_lag: i64, claims: &mut Vec<Claim>) {
    divide(accounts, total, claims, |a| match a.need {
        UNBOUNDED => UNBOUNDED,
        need => a.lag_limit(max_lag) - a.lag + need,
    });
}

/// Ends the TTI: sets the final `due` of each member and updates its lag.
pub(super) fn finish_tti(accounts: &mut [Account], max_lag: i64, claims: &mut Vec<Claim>) {
    let total = accounts.iter().map(|a| a.served).sum();
    divide(accounts, total, claims, |a| match a.has_backlog {
        true => UNBOUNDED,
        false => a.lag_limit(max_lag) - a.lag + a.served,
    });
    for account in accounts {
        account.lag = account.projected_lag();
    }
}

/// Divides `total` by weight, plus the deviation from 0 of the sum of lags that members caused by joining and leaving. No
/// member gets more than `max`; the excess goes to the others.
fn divide(accounts: &mut [Account], total: i64, claims: &mut Vec<Claim>, max: impl Fn(&Account) -> i64) {
    claims.clear();
    let mut left = total;
    for (index, account) in accounts.iter_mut().enumerate().filter(|(_, a)| a.participates()) {
        left -= account.lag;
        account.due = 0;
        claims.push(Claim { weight: account.weight, max: max(account), index });
    }
    // Process members with the least room per weight first. What members with a weight leave is divided equally among the others.
    claims.sort_unstable_by(|a, b| {
        let capacity = |one: &Claim, other: &Claim| i128::from(one.max) * i128::from(other.weight.max(1));
        let weightless = (a.weight == 0).cmp(&(b.weight == 0));
        weightless.then(capacity(a, b).cmp(&capacity(b, a))).then(a.index.cmp(&b.index))
    });
    let mut weights: i128 = claims.iter().map(|c| i128::from(c.weight)).sum();
    for (claim, still) in claims.iter().zip((1..=claims.len() as i64).rev()) {
        let fair = match weights {
            0 => left / still,
            _ => (i128::from(left) * i128::from(claim.weight) / weights) as i64,
        };
        let due = fair.min(claim.max);
        weights -= i128::from(claim.weight);
        left -= due;
        accounts[claim.index].due = due;
    }
}
