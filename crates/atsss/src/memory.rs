//! Memory of a user at the UPF: the experiment of JUNCTION Table V with the structures of this program.
//!
//! JUNCTION §VI-D fills the memory of a switch with users of 1, 2, 4 and 8 sessions, in four designs: with
//! and without the hierarchical table lookup (HTL, §V-C1), and with and without the unified traffic steering
//! structure (UTSS, §V-C2). Here the entries are those of this program, in bytes:
//!
//! ```text
//!   design     per session                                               per user          once
//!   naive      index slot, [address, filter, mode, endpoints, paths, S]  -                 -
//!   HTL only   address slot, [endpoints, paths, S]                       exceptions        rules
//!   UTSS only  index slot, [address, filter, mode, endpoints, user, S]   paths             -
//!   both       address slot, S                                           pointer, paths,   rules
//!                                                                        endpoints, exceptions
//!   filter, mode   of the one rule of the session      paths      the 8 path states
//!   endpoints      of 2 accesses, as in the paper      S          what the mode remembers
//!   rules          a full rule set, shared             exceptions for 10 % of the users
//! ```
//!
//! In the flat design, each session has an entry with its own rule, as in PFCP (a PDR with its filter and a
//! MAR with its mode in every session, TS 29.244 §7.5.2). [`Flat::ApplicationId`] computes a more economical
//! reading of Fig. 7a, in which a common classifier has already mapped the filter to a number. As in the
//! paper ("a simplified data plane program"), keys, reordering and counters are left out, because they are
//! the same in all designs. docs/atsss-memory.md discusses the result.

use crate::classify::{CompiledRule, MAX_RULES, Matcher};
use crate::table::session::{address_bytes, exception_bytes};
use anabranch_steer::{Mode, ModeState, PathStates};
use std::net::{IpAddr, SocketAddr};

/// The four designs, in the order of the paper's columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Design {
    /// A flat table with the complete state in each entry.
    Naive,
    /// Hierarchical lookup only.
    Htl,
    /// Unified steering structure only.
    Utss,
    /// Both, as in this program.
    Both,
}

impl Design {
    /// All designs, in the order of the paper's columns.
    pub const ALL: [Self; 4] = [Self::Naive, Self::Htl, Self::Utss, Self::Both];

    /// The name of the paper's column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Naive => "Naive",
            Self::Htl => "HTL only",
            Self::Utss => "UTSS only",
            Self::Both => "JUNCTION",
        }
    }
}

/// The application part of a flat entry's key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flat {
    /// The session's own filter, as in PFCP.
    #[default]
    Filter,
    /// The number of an application, determined by a common classifier.
    ApplicationId,
}

/// One row of Table V.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Sessions per user.
    pub sessions: u64,
    /// Users that fit, by design in the order of [`Design::ALL`].
    pub users: [u64; 4],
    /// The paper's users.
    pub paper: [u64; 4],
}

impl Row {
    /// Number of users relative to that of the naive design.
    #[must_use]
    pub fn ratio(&self, design: Design) -> f64 {
        ratio(&self.users, design)
    }

    /// The same ratio according to the paper's table.
    #[cfg(test)]
    fn paper_ratio(&self, design: Design) -> f64 {
        ratio(&self.paper, design)
    }
}

fn ratio(users: &[u64; 4], design: Design) -> f64 {
    users[design as usize] as f64 / users[0].max(1) as f64
}

/// The paper's Table V: sessions per user, then users by design. The last design's figure at 2 sessions
/// equals the one at 1 session and does not fit the others (docs/atsss-memory.md).
pub const PAPER: [(u64, [u64; 4]); 4] = [
    (1, [3_022_848, 3_702_784, 3_022_848, 3_702_784]),
    (2, [1_511_424, 1_851_392, 1_705_984, 3_702_784]),
    (4, [755_712, 925_696, 913_408, 1_175_552]),
    (8, [377_856, 462_848, 473_088, 616_448]),
];

/// Users that fit into `budget_bytes`, for each design and number of sessions per user, if flat entries contain `flat`.
#[must_use]
pub fn table5(budget_bytes: u64, flat: Flat) -> [Row; 4] {
    PAPER.map(|(sessions, paper)| {
        let users = Design::ALL.map(|design| fit(budget_bytes, |n| bytes(design, flat, n, sessions)));
        Row { sessions, users, paper }
    })
}

/// Bytes of all tables for `users` with `sessions` each. Saturates.
#[must_use]
pub fn bytes(design: Design, flat: Flat, users: u64, sessions: u64) -> u64 {
    let all = users.saturating_mul(sessions);
    let addresses = as_u64(address_bytes(as_usize(all), false));
    let exceptions = as_u64(exception_bytes(as_usize(users.div_ceil(10))));
    let rules = as_u64((MAX_RULES + 1) * size_of::<CompiledRule>());
    // Flat entries are stored densely; the index over them has slots of the size of an IPv4 address slot.
    let per_session = |entry: usize| addresses.saturating_add(all.saturating_mul(as_u64(entry)));
    let per_user = |entry: usize| users.saturating_mul(as_u64(entry));
    match (design, flat) {
        (Design::Naive, Flat::Filter) => per_session(size_of::<FlatEntry<Matcher, PathStates>>()),
        (Design::Naive, Flat::ApplicationId) => per_session(size_of::<FlatEntry<u16, PathStates>>()),
        (Design::Htl, _) => {
            per_session(size_of::<SessionEntry>()).saturating_add(exceptions).saturating_add(rules)
        }
        (Design::Utss, Flat::Filter) => per_session(size_of::<FlatEntry<Matcher, u32>>())
            .saturating_add(per_user(size_of::<PathStates>())),
        (Design::Utss, Flat::ApplicationId) => {
            per_session(size_of::<FlatEntry<u16, u32>>()).saturating_add(per_user(size_of::<PathStates>()))
        }
        (Design::Both, _) => per_session(size_of::<ModeState>())
            .saturating_add(per_user(size_of::<UserEntry>()))
            .saturating_add(exceptions)
            .saturating_add(rules),
    }
}

type Endpoints = [Option<SocketAddr>; 2];

/// Entry of a flat table: `A` is the application part of the key, `P` the path states, or the index of the
/// user that has them.
#[expect(dead_code, reason = "only its size is of interest")]
struct FlatEntry<A, P> {
    address: IpAddr,
    application: A,
    mode: Mode,
    endpoints: Endpoints,
    paths: P,
    state: ModeState,
}

/// Entry of a session with hierarchical lookup but its own path states.
#[expect(dead_code, reason = "only its size is of interest")]
struct SessionEntry {
    endpoints: Endpoints,
    paths: PathStates,
    state: ModeState,
}

/// Entry of a user, and the pointer by which it is found.
#[expect(dead_code, reason = "only its size is of interest")]
struct UserEntry {
    seat: Box<()>,
    endpoints: Endpoints,
    paths: PathStates,
}

/// The largest number of users that fits into the budget.
fn fit(budget_bytes: u64, bytes: impl Fn(u64) -> u64) -> u64 {
    let (mut fits, mut too_many) = (0, budget_bytes.saturating_add(1));
    while too_many - fits > 1 {
        let middle = fits + (too_many - fits) / 2;
        if bytes(middle) <= budget_bytes { fits = middle } else { too_many = middle }
    }
    fits
}

fn as_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn as_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::session::{SessionLimits, SessionTable};

    /// The memory of the paper's switch, as derived from its figures.
    const BUDGET: u64 = 25 << 20;

    #[test]
    fn every_design_reaches_at_least_the_papers_ratio() {
        for budget in [BUDGET, 1 << 30] {
            for row in table5(budget, Flat::Filter) {
                for design in Design::ALL {
                    let (ours, paper) = (row.ratio(design), row.paper_ratio(design));
                    assert!(ours >= paper, "{} at {}: {ours} < {paper}", design.name(), row.sessions);
                }
            }
        }
    }

    #[test]
    fn with_application_numbers_a_single_session_gains_less_than_the_papers() {
        // Stated in docs/atsss-memory.md: the filter is most of what hierarchical lookup saves here.
        let [one, two, four, eight] = table5(BUDGET, Flat::ApplicationId).map(|r| r.ratio(Design::Both));
        assert!((1.1..1.22).contains(&one), "{one}");
        assert!((2.0..2.45).contains(&two), "{two}");
        assert!(four > 1.56 && eight > 1.63, "{four} {eight}");
    }

    #[test]
    fn the_page_has_these_tables() {
        let page = include_str!("../../../docs/atsss-memory.md");
        let thousands = |n: u64| format!("{},{:03}", n / 1000, n % 1000);
        for row in table5(BUDGET, Flat::Filter) {
            let both = |design| format!("{:.2} ({:.2})", row.ratio(design), row.paper_ratio(design));
            let line = format!(
                "| {} | {} | {} | {} | **{:.2}** (",
                row.sessions,
                thousands(row.users[0]),
                both(Design::Htl),
                both(Design::Utss),
                row.ratio(Design::Both)
            );
            assert!(page.contains(&line), "the page lacks {line}");
        }
        for row in table5(BUDGET, Flat::ApplicationId) {
            let [_, htl, utss, both] = Design::ALL.map(|design| row.ratio(design));
            let line = format!("| {} | {htl:.2} | {utss:.2} | **{both:.2}** |", row.sessions);
            assert!(page.contains(&line), "the page lacks {line}");
        }
    }

    #[test]
    fn the_papers_figures_are_a_line_in_the_sessions_but_for_one() {
        // Per user: 16 bits of path state (two 8-bit registers, §V-G), and per session an entry of
        // 53.4 bits (flat) or 40.6 bits (hierarchical), in 25 MiB.
        let bits = BUDGET as f64 * 8.0;
        let [flat, hierarchical] = [PAPER[0].1[0], PAPER[0].1[1]].map(|users| bits / users as f64 - 16.0);
        for (sessions, users) in PAPER {
            let n = sessions as f64;
            let model =
                [n * (flat + 16.0), n * (hierarchical + 16.0), 16.0 + n * flat, 16.0 + n * hierarchical];
            for (design, (model, users)) in Design::ALL.iter().zip(model.into_iter().zip(users)) {
                let off = (bits / model) / users as f64 - 1.0;
                if (sessions, *design) == (2, Design::Both) {
                    // The line gives 2.16 million, 1.43 times the naive design.
                    assert!((-0.43..-0.41).contains(&off), "{off}");
                } else {
                    assert!(off.abs() < 0.003, "{sessions} {} {off}", design.name());
                }
            }
        }
    }

    #[test]
    fn the_bytes_are_those_of_a_real_table() {
        for (users, sessions) in [(1, 1), (1000, 2), (999, 8)] {
            let n = users * sessions;
            let limits = SessionLimits { v4: n, v6: 0, exceptions: users.div_ceil(10) };
            let mut table = SessionTable::with_limits(limits, 1);
            table.reserve();
            let rest = n * size_of::<ModeState>()
                + users * size_of::<UserEntry>()
                + (MAX_RULES + 1) * size_of::<CompiledRule>();
            let accounted = bytes(Design::Both, Flat::Filter, users as u64, sessions as u64);
            // Without the one empty slot of an IPv6 table without entries.
            assert_eq!(accounted, (table.bytes() - address_bytes(0, true) + rest) as u64);
        }
    }

    #[test]
    fn budgets_are_used_up_and_not_exceeded() {
        for budget in [0, 1000, BUDGET, u64::MAX / 1024] {
            for flat in [Flat::Filter, Flat::ApplicationId] {
                for row in table5(budget, flat) {
                    for (design, users) in Design::ALL.into_iter().zip(row.users) {
                        let cost = |users| bytes(design, flat, users, row.sessions);
                        assert!(users == 0 || cost(users) <= budget);
                        assert!(cost(users + 1) > budget);
                        assert!(row.ratio(design).is_finite());
                    }
                }
            }
        }
    }
}
