use super::*;
use crate::inventory::Access;
use crate::profile::Thpt;
use crate::record::{Assignment, Attachment};
use crate::view::{self, SliceFacts};
use proptest::prelude::*;

fn access(name: &str, location: &str, mbps: u64) -> Access {
    Access {
        name: name.into(),
        location: location.into(),
        downlink_bps: mbps * 1_000_000,
        uplink_bps: mbps * 500_000,
        max_share_ppm: 900_000,
        delay_ms: if location == "far" { 20.0 } else { 5.0 },
        rest_slice: "default".into(),
    }
}

fn manager() -> Manager {
    Manager::new(
        Inventory::new([access("cell-1", "pier", 100), access("cell-2", "far", 200)]).unwrap(),
        GrowthLimits::default(),
    )
}

fn order(name: &str, coverage: &[&str], dl_mbps: f64, ul_mbps: f64) -> SliceRequest {
    let thpt = |mbps: f64| Thpt { gua: Some(mbps * 1e3), max: None };
    let profile = ServiceProfile {
        sst: 1,
        dl_slice: thpt(dl_mbps),
        ul_slice: thpt(ul_mbps),
        coverage: coverage.iter().map(|c| (*c).to_owned()).collect(),
        ..ServiceProfile::default()
    };
    SliceRequest { name: name.into(), profile, ..SliceRequest::default() }
}

fn put(manager: &mut Manager, writes: Vec<Write>) {
    for write in writes {
        // Through the serialised form, as in the database.
        let Write { kind, id, record } = write;
        let record = record.map(|r| Record::from_json(kind, &r.to_json().unwrap()).unwrap());
        manager.put(Write { kind, id, record });
    }
}

/// Runs every step; those for which `fails` returns true fail.
fn run(manager: &mut Manager, id: &str, mut fails: impl FnMut(&Action) -> bool) {
    for _ in 0..32 {
        let Some(action) = manager.todo().find(|(i, _)| *i == id).map(|(_, a)| a) else { return };
        let fail = action.as_ref().is_some_and(&mut fails);
        let writes =
            manager.step_done(id, if fail { Err("cell says no".into()) } else { Ok(()) }, 1_000).unwrap();
        put(manager, writes);
    }
    panic!("does not end");
}

fn ue(id: &str) -> Ue {
    Ue::new(id.into(), String::new())
}

#[test]
fn a_slice_is_placed_made_changed_and_removed() {
    let mut m = manager();
    let writes = m.create("s1", order("video", &["Pier"], 40.0, 5.0), 10).unwrap();
    put(&mut m, writes);
    assert_eq!(m.slice("s1").unwrap().state, State::Placement);
    assert_eq!(m.ledger(None).promised("cell-1"), (40_000_000, 5_000_000, 400_000));
    let shares = m.shares("cell-1", "s1", &m.todo().next().unwrap().1.unwrap());
    assert_eq!(
        (shares[0].name.as_str(), shares[0].share_ppm, shares[0].max_ppm),
        ("video", 400_000, 1_000_000)
    );
    run(&mut m, "s1", |_| false);
    assert_eq!(m.slice("s1").unwrap().state, State::Running);

    let facts = SliceFacts::from(m.slice("s1").unwrap());
    let writes = m.modify("s1", order("video", &["Pier"], 60.0, 5.0), 20).unwrap();
    put(&mut m, writes);
    assert_eq!(m.ledger(None).promised("cell-1").0, 60_000_000, "the larger is reserved");
    assert_eq!(SliceFacts::from(m.slice("s1").unwrap()), facts, "the old profile holds");
    run(&mut m, "s1", |_| false);
    assert_eq!(m.slice("s1").unwrap().profile.dl_slice.gua, Some(60_000.0));

    put(&mut m, vec![Write::ue(ue("phone"))]);
    let writes = m.assign("phone", "s1", None).unwrap();
    put(&mut m, writes);
    let told = view::view(&m, m.ue("phone").unwrap(), 30);
    assert_eq!((told.slices.len(), told.slices[0].dl_guaranteed_bps), (1, Some(60_000_000)));
    assert!(serde_json::to_string(&told).unwrap().len() < 250);

    let writes = m.remove("s1", false, 30).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |_| false);
    assert!(m.slices().is_empty() && m.ue("phone").unwrap().slices.is_empty());
    assert_eq!(m.ledger(None).promised("cell-1"), (0, 0, 0));
}

/// NEST: a guarantee for the slice with a maximum per UE, or the reverse.
#[test]
fn a_ue_is_guaranteed_at_most_its_maximum_and_the_reserved_rate() {
    let thpt = |gua: Option<f64>, max: Option<f64>| Thpt { gua, max };
    let mut m = manager();
    for (i, slice, ue, told, held) in [
        (
            "1",
            thpt(Some(8e3), Some(20e3)),
            thpt(None, Some(1e3)),
            (Some(1_000_000), Some(1_000_000)),
            8_000_000,
        ),
        ("2", thpt(Some(8e3), None), thpt(Some(9e3), None), (Some(9_000_000), None), 9_000_000),
        (
            "3",
            thpt(None, Some(5e3)),
            thpt(Some(2e3), Some(9e3)),
            (Some(2_000_000), Some(5_000_000)),
            2_000_000,
        ),
    ] {
        let mut order = order(i, &["pier"], 0.0, 0.0);
        (order.profile.dl_slice, order.profile.ul_slice) = (slice, slice);
        (order.profile.dl_ue, order.profile.ul_ue) = (ue, ue);
        order.profile.check().unwrap();
        let writes = m.create(i, order, 10).unwrap();
        put(&mut m, writes);
        let slice = m.slice(i).unwrap();
        let facts = SliceFacts::from(slice);
        assert_eq!((facts.dl_guaranteed_bps, facts.dl_max_bps), told, "{i}");
        assert_eq!((facts.ul_guaranteed_bps, facts.ul_max_bps), told, "{i}");
        assert_eq!(slice.wanted["cell-1"].downlink_bps, held, "{i}");
    }
}

/// With less capacity than guaranteed, a change that reduces the shortage is accepted.
#[test]
fn a_change_that_reduces_a_shortage_is_accepted() {
    let mut m = manager();
    for (id, mbps) in [("s1", 50.0), ("s2", 30.0)] {
        let writes = m.create(id, order(id, &["pier"], mbps, 5.0), 10).unwrap();
        put(&mut m, writes);
        run(&mut m, id, |_| false);
    }
    let Manager { slices, .. } = m;
    let less = Inventory::new([access("cell-1", "pier", 60)]).unwrap();
    let mut m = Manager { slices, ..Manager::new(less, GrowthLimits::default()) };
    assert!(m.modify("s2", order("s2", &["pier"], 31.0, 5.0), 20).is_err());
    assert!(m.modify("s2", order("s2", &["pier"], 5.0, 6.0), 20).is_ok(), "there is as much uplink");
    let writes = m.modify("s1", order("s1", &["pier"], 20.0, 5.0), 20).unwrap();
    put(&mut m, writes);
    assert!(m.modify("s2", order("s2", &["pier"], 31.0, 5.0), 20).is_err(), "until it is done");
    run(&mut m, "s1", |_| false);
    assert!(m.modify("s2", order("s2", &["pier"], 31.0, 5.0), 20).is_ok());
}

#[test]
fn a_result_of_the_creation_does_not_apply_to_the_removal() {
    let mut m = manager();
    let writes = m.create("s1", order("video", &["pier"], 40.0, 5.0), 10).unwrap();
    put(&mut m, writes);
    let (made, action) = (m.slice("s1").unwrap().clone(), m.todo().next().unwrap().1);
    assert!(m.waits_for(&made, action.as_ref()));
    // The request was sent to the cell, which has not answered.
    let writes = m.remove("s1", false, 20).unwrap();
    put(&mut m, writes);
    assert_eq!(m.todo().next().unwrap().1, action, "the removal begins with the same step");
    assert!(!m.waits_for(&made, action.as_ref()));
}

#[test]
fn a_slice_that_failed_while_the_clock_was_ahead_is_retried() {
    const DAY_MS: u64 = 86_400_000;
    let mut m = manager();
    let writes = m.create("s1", order("video", &["pier"], 40.0, 5.0), DAY_MS).unwrap();
    put(&mut m, writes);
    while m.todo().next().is_some() {
        let writes = m.step_done("s1", Err("cell says no".into()), DAY_MS).unwrap();
        put(&mut m, writes);
    }
    let at = m.slice("s1").unwrap().retry_ms.unwrap();
    assert!(m.due(at - 1).is_empty() && !m.due(at).is_empty());
    assert!(!m.due(at - DAY_MS).is_empty(), "the clock is right again");
}

#[test]
fn failed_changes_are_undone() {
    let mut m = manager();
    let writes = m.create("s1", order("video", &["pier", "far", "moon"], 40.0, 5.0), 10).unwrap();
    put(&mut m, writes);
    assert_eq!(m.slice("s1").unwrap().not_supported, ["moon"]);
    run(&mut m, "s1", |a| matches!(a, Action::Do(Step::Shares { access }) if access == "cell-2"));
    let slice = m.slice("s1").unwrap();
    assert_eq!(slice.state, State::Failed("cell says no".into()));
    assert!(slice.reserved().is_empty());

    // A cell that cannot be reached for undoing may still have the slice: it stays reserved until it can.
    let writes = m.create("s2", order("video", &["pier"], 40.0, 5.0), 10).unwrap();
    put(&mut m, writes);
    run(&mut m, "s2", |a| !matches!(a, Action::Do(Step::Shares { .. })));
    assert_eq!(m.ledger(None).promised("cell-1").0, 40_000_000);
    let writes = m.remove("s2", false, 10).unwrap();
    put(&mut m, writes);
    let writes = m.step_done("s2", Err("still no".into()), 11).unwrap();
    put(&mut m, writes);
    assert_eq!(m.slice("s2").unwrap().state, State::Terminating, "it is tried again");
    run(&mut m, "s2", |_| false);
    assert_eq!(m.ledger(None).promised("cell-1").0, 0);
}

#[test]
fn a_failed_change_restores_the_slice() {
    let mut m = manager();
    let writes = m.create("s1", order("video", &["pier"], 40.0, 5.0), 10).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |_| false);
    let writes = m.modify("s1", order("video", &["pier"], 70.0, 5.0), 20).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |a| matches!(a, Action::Do(Step::Verify { .. })));
    let slice = m.slice("s1").unwrap();
    assert_eq!((slice.state.clone(), slice.profile.dl_slice.gua), (State::Running, Some(40_000.0)));
    assert_eq!(m.ledger(None).promised("cell-1").0, 40_000_000);
    assert_eq!(slice.errors.len(), 1);
}

#[test]
fn health_degrades_and_recovers() {
    let mut m = manager();
    let writes = m.create("s1", order("video", &["pier"], 40.0, 5.0), 10).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |_| false);
    let writes = m.health("cell-1", Some("gNB does not answer"), 20);
    put(&mut m, writes);
    assert_eq!(m.slice("s1").unwrap().state, State::Degraded("cell-1: gNB does not answer".into()));
    assert!(m.health("cell-1", Some("gNB does not answer"), 21).is_empty());
    assert!(m.health("cell-2", Some("gone"), 21).is_empty());
    let writes = m.health("cell-1", None, 22);
    put(&mut m, writes);
    assert_eq!(m.slice("s1").unwrap().state, State::Running);
}

/// A fault at an access concerns a slice only while the slice is present there.
#[test]
fn faults_at_former_accesses_do_not_degrade_a_slice() {
    let mut m = manager();
    let writes = m.create("s1", order("video", &["pier"], 40.0, 5.0), 10).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |_| false);
    let mut slice = m.slice("s1").unwrap().clone();
    assert!(!slice.applied.contains_key("cell-2"));
    slice.problems.insert("cell-2".into(), "lost its shares".into());
    put(&mut m, vec![Write::slice(slice)]);
    let writes = m.health("cell-1", Some("no answer"), 20);
    put(&mut m, writes);
    assert_eq!(m.slice("s1").unwrap().state, State::Degraded("cell-1: no answer".into()));
    let writes = m.health("cell-1", None, 21);
    put(&mut m, writes);
    assert_eq!(m.slice("s1").unwrap().state, State::Running);
}

#[test]
fn a_ue_may_ask_for_more_of_its_own_slice() {
    let mut m = manager();
    let mut wanted = order("video", &["pier"], 40.0, 5.0);
    wanted.profile.dl_slice.max = Some(80_000.0);
    wanted.profile.max_ues = Some(1);
    let writes = m.create("s1", wanted, 10).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |_| false);
    put(&mut m, vec![Write::ue(ue("phone")), Write::ue(ue("tv"))]);
    let writes = m.assign("phone", "s1", None).unwrap();
    put(&mut m, writes);
    assert_eq!(m.assign("tv", "s1", None), Err(Refusal::Full { what: "UEs of this slice", most: 1 }));
    assert!(matches!(m.grow("tv", "s1", 1, 1, 20), Err(Refusal::Unknown(..))));
    assert_eq!(m.grow("phone", "s1", 30_000_000, 0, 20), Ok(Vec::new()));
    assert!(matches!(m.grow("phone", "s1", 90_000_000, 0, 20), Err(Refusal::Full { most: 80_000_000, .. })));
    let writes = m.grow("phone", "s1", 70_000_000, 0, 20).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |_| false);
    assert_eq!(m.ledger(None).promised("cell-1").0, 70_000_000);
}

/// A failed slice reserves only what a cell may still have; it is retried with growing pauses, and can be changed.
#[test]
fn a_slice_that_failed_is_tried_again() {
    let mut m = manager();
    let writes = m.create("s1", order("video", &["pier"], 60.0, 0.0), 0).unwrap();
    put(&mut m, writes);
    // Verification fails, and so does undoing: the cell may have the slice.
    run(&mut m, "s1", |action| !matches!(action, Action::Do(Step::Shares { .. })));
    let slice = m.slice("s1").unwrap();
    assert!(matches!(slice.state, State::Failed(_)) && slice.applied.is_empty());
    assert_eq!(slice.reserved()["cell-1"].downlink_bps, 60_000_000);
    // The cell was reconfigured and has what it should: nothing.
    let writes = m.health("cell-1", None, 1_000);
    put(&mut m, writes);
    assert!(m.slice("s1").unwrap().reserved().is_empty());
    let mut now = m.slice("s1").unwrap().retry_ms.unwrap();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        assert_eq!(m.due(now - 1), Vec::new());
        let writes = m.due(now);
        put(&mut m, writes);
        assert_eq!(m.slice("s1").unwrap().state, State::Placement);
        for _ in 0..9 {
            let Some(_) = m.todo().next() else { break };
            let writes = m.step_done("s1", Err("cell says no".into()), now).unwrap();
            put(&mut m, writes);
        }
        let again = m.slice("s1").unwrap().retry_ms.unwrap();
        pauses.push((again - now) / 1000);
        now = again;
        let writes = m.health("cell-1", None, now);
        put(&mut m, writes);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300, 300, 300]);
    // Meanwhile another slice took its capacity: it waits on, with the reason.
    let writes = m.create("s2", order("other", &["pier"], 60.0, 0.0), now).unwrap();
    put(&mut m, writes);
    run(&mut m, "s2", |_| false);
    let writes = m.due(now);
    put(&mut m, writes);
    let slice = m.slice("s1").unwrap();
    assert!(
        slice.state.reason().unwrap().contains("bit/s downlink left") && slice.retry_ms > Some(now),
        "{slice:?}"
    );
    // The new request fits.
    let writes = m.modify("s1", order("smaller", &["pier"], 20.0, 0.0), now).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |_| false);
    let slice = m.slice("s1").unwrap();
    assert_eq!((&slice.state, slice.name.as_str(), slice.tries), (&State::Running, "smaller", 0));
    assert_eq!(m.due(u64::MAX), Vec::new());
}

/// Needs of UEs are limited per access, are not part of the operator's request, and expire.
#[test]
fn what_a_ue_has_slices_grow_by_is_bounded_and_ends() {
    for percent in [10, 25, 50] {
        let inventory =
            Inventory::new([access("cell-1", "pier", 100), access("cell-2", "far", 200)]).unwrap();
        let mut m = Manager::new(inventory, GrowthLimits { percent, seconds: 60 });
        for (id, mbps) in [("s1", 10.0), ("s2", 5.0)] {
            let writes = m.create(id, order(id, &["pier"], mbps, 1.0), 0).unwrap();
            put(&mut m, writes);
            run(&mut m, id, |_| false);
            for name in ["phone", "tv"] {
                if m.ue(name).is_err() {
                    put(&mut m, vec![Write::ue(ue(name))]);
                }
                let writes = m.assign(name, id, None).unwrap();
                put(&mut m, writes);
            }
        }
        let asked = m.slice("s1").unwrap().requested_slice();
        let share = u64::from(percent) * 1_000_000;
        let over = m.grow("phone", "s1", 10_000_000 + share + 1, 0, 1_000);
        assert!(matches!(over, Err(Refusal::Full { most, .. }) if most == share), "{over:?}");
        // Half of the UE's limit here, and at most the other half there.
        let writes = m.grow("phone", "s1", 10_000_000 + share / 2, 0, 1_000).unwrap();
        put(&mut m, writes);
        assert_eq!(m.slice("s1").unwrap().requested_slice(), asked, "under way");
        run(&mut m, "s1", |_| false);
        assert!(m.grow("phone", "s2", 5_000_000 + share / 2 + 1, 0, 1_000).is_err());
        assert!(
            m.grow("tv", "s2", 5_000_000 + share / 2 + 1, 0, 1_000).is_ok(),
            "another has a share of its own"
        );
        let slice = m.slice("s1").unwrap();
        assert_eq!(slice.requested_slice(), asked);
        assert_eq!(m.ledger(None).promised("cell-1").0, 15_000_000 + share / 2);
        // A UE that needs less changes nothing; when the first leaves, the need of the other remains.
        let writes = m.grow("tv", "s1", 10_000_000 + share / 4, 0, 2_000).unwrap();
        put(&mut m, writes);
        assert!(m.slice("s1").unwrap().plan.is_none());
        assert_eq!(m.grow("tv", "s1", 10_000_000 + share / 4, 0, 3_000), Ok(Vec::new()), "known");
        assert_eq!(m.due(3_000), Vec::new());
        let writes = m.needs_nothing("phone");
        put(&mut m, writes);
        let writes = m.due(3_000);
        put(&mut m, writes);
        run(&mut m, "s1", |_| false);
        assert_eq!(m.ledger(None).promised("cell-1").0, 15_000_000 + share / 4);
        // Without renewal the need expires; the operator's request remains.
        let writes = m.due(62_000);
        put(&mut m, writes);
        run(&mut m, "s1", |_| false);
        assert_eq!(m.ledger(None).promised("cell-1").0, 15_000_000);
        assert!(
            m.slice("s1").unwrap().growth.is_empty() && m.slice("s1").unwrap().requested_slice() == asked
        );
    }
}

/// A failed change restores everything in the request, not only the profile.
#[test]
fn a_change_that_fails_leaves_what_was_asked_for() {
    let mut m = manager();
    let first = SliceRequest {
        accesses: vec!["cell-1".into()],
        share_ppm: Some(50_000),
        ..order("a", &[], 10.0, 1.0)
    };
    let writes = m.create("s1", first, 0).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |_| false);
    let asked = m.slice("s1").unwrap().requested_slice();
    assert_eq!((asked.accesses.as_slice(), asked.share_ppm), (&["cell-1".to_owned()][..], Some(50_000)));
    for fails in [true, false] {
        let other = SliceRequest { share_ppm: Some(70_000), ..order("b", &[], 20.0, 1.0) };
        let writes = m.modify("s1", other, 0).unwrap();
        put(&mut m, writes);
        let changed = m.slice("s1").unwrap().requested_slice();
        assert_eq!(
            (changed.name.as_str(), changed.accesses.len(), changed.share_ppm),
            ("b", 0, Some(70_000))
        );
        run(&mut m, "s1", |action| fails && matches!(action, Action::Do(Step::Verify { .. })));
        assert_eq!(m.slice("s1").unwrap().requested_slice(), if fails { asked.clone() } else { changed });
    }
}

proptest! {
    /// Changing some attributes of a profile leaves the others at their current values.
    #[test]
    fn changes_of_one_view_do_not_undo_those_of_another(
        now in prop::array::uniform4(prop::option::of(0_u32..9)), old in prop::array::uniform4(prop::option::of(0_u32..9)),
        new in prop::array::uniform4(prop::option::of(0_u32..9)), places in prop::array::uniform3(0_usize..3),
    ) {
        let profile = |v: [Option<u32>; 4], places: usize| ServiceProfile {
            dl_slice: Thpt { gua: v[0].map(f64::from), max: v[1].map(f64::from) },
            dl_latency: v[2].map(f64::from),
            max_ues: v[3].map(u64::from),
            coverage: vec!["pier".into(); places],
            ..ServiceProfile::default()
        };
        let [n, o, w] = [(now, places[0]), (old, places[1]), (new, places[2])].map(|(v, p)| profile(v, p));
        let pick = |i: usize| if old[i] == new[i] { now[i] } else { new[i] };
        let at = if places[1] == places[2] { places[0] } else { places[2] };
        prop_assert_eq!(n.with_changes(&o, &w), profile([pick(0), pick(1), pick(2), pick(3)], at));
    }
}

#[test]
fn refusals_state_the_reason() {
    let m = manager();
    let why = |order| m.create("x", order, 0).unwrap_err().to_string();
    assert!(
        why(order("a", &["pier"], 95.0, 1.0)).contains("\"cell-1\" has 900000 millionths of the RBs left")
    );
    assert!(why(order("a", &["moon"], 1.0, 1.0)).contains("no access serves \"moon\""));
    let mut fast = order("a", &["far"], 1.0, 1.0);
    fast.profile.dl_latency = Some(10.0);
    assert!(why(fast).contains("\"far\" within 10 ms"));
    let there = SliceRequest { accesses: vec!["cell-9".into()], ..order("a", &[], 1.0, 1.0) };
    assert!(why(there).contains("no access \"cell-9\""));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]
    /// For any sequence of requests by operators and UEs, and any failures: neither the reserved amounts nor those sent to cells exceed
    /// the capacity, and no slice grows beyond its maximum.
    #[test]
    fn admission_never_exceeds_capacity(
        ops in prop::collection::vec((0_u8..16, 0_usize..4, 0_u32..120, 0_u32..70, prop::bool::weighted(0.8)), 1..100)
    ) {
        let mut m = manager();
        let assignment = |i: usize| Assignment { slice: format!("s{i}"), cell_ue: None, attachment: Attachment::Active };
        put(&mut m, vec![Write::ue(Ue { slices: (0..4).map(assignment).collect(), ..ue("phone") })]);
        // The configuration of each cell: the last list sent, which may be one that it then reported as refused.
        let mut told: BTreeMap<String, u64> = BTreeMap::new();
        for (i, (op, at, dl, ul, flag)) in ops.into_iter().enumerate() {
            let id = format!("s{at}");
            let places: &[&str] = match (dl % 3, flag) { (0, _) => &["pier"], (1, _) => &["far"], _ => &[] };
            let mut order = order(&format!("n{}", at % 2), places, dl.into(), ul.into());
            order.profile.dl_slice.max = (ul % 2 == 0).then(|| f64::from(dl) * 1.5e3);
            let now = i as u64 * 1000;
            let result = match op {
                0 | 1 => m.create(&id, order, now),
                2 => m.modify(&id, order, now),
                3 => m.remove(&id, flag, now),
                4 | 5 => {
                    m.grow("phone", &id, u64::from(dl) * 1_000_000, u64::from(ul) * 1_000_000, now)
                }
                6 => Ok(m.due(now + u64::from(dl) * 100_000)),
                7 => {
                    // The cell is checked and reconfigured.
                    let access = ["cell-1", "cell-2"][at % 2];
                    if m.expected_configuration(access).is_some() {
                        let sum = m.shares_now(access).iter().map(|s| u64::from(s.share_ppm)).sum();
                        told.insert(access.to_owned(), sum);
                    }
                    Ok(m.health(access, None, now))
                }
                8 => Ok(m.needs_nothing("phone")),
                _ => {
                    let action = m.todo().find(|(i, _)| *i == id).and_then(|(_, a)| a);
                    if let Some(action @ (Action::Do(Step::Shares { .. }) | Action::Undo(Step::Shares { .. }))) = action {
                        let (Action::Do(Step::Shares { access }) | Action::Undo(Step::Shares { access })) = &action else {
                            unreachable!()
                        };
                        let sum = m.shares(access, &id, &action).iter().map(|s| u64::from(s.share_ppm)).sum();
                        told.insert(access.clone(), sum);
                    }
                    m.step_done(&id, if flag { Ok(()) } else { Err("no".into()) }, now)
                }
            };
            if let Ok(writes) = result {
                put(&mut m, writes);
            }
            let ledger = m.ledger(None);
            for access in m.inventory().iter() {
                let (dl, ul, share) = ledger.promised(&access.name);
                prop_assert!(dl <= access.downlink_bps && ul <= access.uplink_bps);
                prop_assert!(share <= access.max_share_ppm.into());
                prop_assert!(told.get(&access.name).copied().unwrap_or(0) <= access.max_share_ppm.into());
            }
            for slice in m.slices().values() {
                prop_assert!(slice.plan.is_some() || !matches!(slice.state, State::Placement | State::Provisioning
                    | State::Activation | State::Terminating), "stuck in {}", slice.state);
                let thpt = slice.profile.dl_slice;
                prop_assert!(thpt.max.is_none_or(|most| thpt.gua.unwrap_or(0.0) <= most));
                // A failed slice is scheduled for a retry, and sent to no cell in the meantime.
                if matches!(slice.state, State::Failed(_)) {
                    prop_assert!(slice.retry_ms.is_some() && slice.applied.is_empty());
                }
            }
        }
    }
}

/// A name at the cells belongs to one place, whatever was assigned before; a name without its place is moved back by the cells at
/// which it has no other place.
#[test]
fn a_name_at_the_cells_has_one_place_or_is_moved_back() {
    let mut m = manager();
    for (id, name) in [("s1", "video"), ("s2", "voice")] {
        let writes = m.create(id, order(name, &["pier"], 10.0, 1.0), 10).unwrap();
        put(&mut m, writes);
        run(&mut m, id, |_| false);
    }
    put(&mut m, vec![Write::ue(ue("phone")), Write::ue(ue("tablet"))]);
    let access = m.slice("s1").unwrap().applied.keys().next().unwrap().clone();
    let cell = |slice: &str| BTreeMap::from([("p1".to_owned(), slice.to_owned())]);
    let is_placed = |m: &Manager| m.names_at(&access).any(|name| name == "p1");
    let tell = |m: &mut Manager, result: Result<(), String>| {
        let results = m.pending_placements(10).into_iter().map(|place| (place, result.clone())).collect();
        let writes = m.record_placements(results);
        put(m, writes);
    };

    let writes = m.assign("phone", "s1", Some("p1".into())).unwrap();
    put(&mut m, writes);
    assert_eq!(
        (m.pending_placements(10).len(), m.pending_placements(10)[0].cell_name.as_str()),
        (1, "video")
    );
    tell(&mut m, Ok(()));
    assert!(m.strays(&access, &cell("video")).is_empty() && is_placed(&m));
    // The cell restarts.
    let writes = m.strays(&access, &cell("rest"));
    put(&mut m, writes);
    assert_eq!(m.pending_placements(10).len(), 1);
    // A failed place is sent again once the cell has the UE.
    tell(&mut m, Err("no such UE".into()));
    assert!(m.strays(&access, &BTreeMap::new()).is_empty());
    let writes = m.strays(&access, &cell("video"));
    put(&mut m, writes);
    let places = m.pending_placements(10);
    // A place that changes in the meantime remains to be sent.
    let writes = m.assign("tablet", "s2", Some("p1".into())).unwrap();
    put(&mut m, writes);
    let writes = m.record_placements(places.into_iter().map(|place| (place, Ok(()))).collect());
    put(&mut m, writes);
    assert_eq!(m.ue("phone").unwrap().slices[0].cell_ue, None, "the newest counts");
    assert!(m.pending_placements(10).iter().any(|place| place.ue == "tablet"));
    tell(&mut m, Ok(()));
    assert!(m.strays(&access, &cell("voice")).is_empty());
    let writes = m.put_back(&m.released(10));
    put(&mut m, writes);

    let writes = m.unassign("tablet", "s2").unwrap();
    put(&mut m, writes);
    let released = m.released(10);
    assert_eq!((released.len(), is_placed(&m)), (1, false));
    let writes = m.put_back(&released);
    put(&mut m, writes);
    assert!(m.released(10).is_empty());

    // A cell is excluded for a name with a place there; if that place is removed before the others have answered, it is included.
    for slice in ["s1", "s2"] {
        let writes = m.assign("tablet", slice, Some("p1".into())).unwrap();
        put(&mut m, writes);
    }
    let mut released = m.released(10);
    assert!(released.len() == 1 && is_placed(&m));
    m.note_placed(&access, &mut released);
    assert_eq!(released[0].placed_at, *std::slice::from_ref(&access));
    let writes = m.unassign("tablet", "s2").unwrap();
    put(&mut m, writes);
    let writes = m.put_back(&released);
    put(&mut m, writes);
    assert_eq!(m.released(10).len(), 1);
    let writes = m.put_back(&m.released(10));
    put(&mut m, writes);

    // The same for a removed slice: the cell that refused the place may have the UE in another slice.
    let writes = m.assign("tablet", "s2", Some("p1".into())).unwrap();
    put(&mut m, writes);
    tell(&mut m, Err("no such UE".into()));
    let writes = m.remove("s2", false, 20).unwrap();
    put(&mut m, writes);
    run(&mut m, "s2", |_| false);
    let released = m.released(10);
    assert_eq!(released.iter().map(|name| name.cell_ue.as_str()).collect::<Vec<_>>(), ["p1"]);
    let writes = m.put_back(&released);
    put(&mut m, writes);

    // A deleted UE remains until the cells know, and cannot be assigned in the meantime.
    let writes = m.assign("phone", "s1", Some("p1".into())).unwrap();
    put(&mut m, writes);
    let writes = m.forget("phone").unwrap();
    put(&mut m, writes);
    assert!(m.ue("phone").unwrap().leaving && m.ue("phone").unwrap().slices.is_empty());
    assert!(m.assign("phone", "s1", None).is_err());
    let writes = m.put_back(&m.released(10));
    put(&mut m, writes);
    assert!(m.ue("phone").is_err());
    let writes = m.forget("tablet").unwrap();
    put(&mut m, writes);
    assert!(m.ue("tablet").is_err(), "nothing is left to be done");
}

/// While one slice is verified, another is changed: the cell may have its old or its new configuration.
#[test]
fn verification_accepts_changing_slices_in_either_form() {
    let mut m = manager();
    for (id, name) in [("s1", "video"), ("s2", "voice"), ("s3", "rest of it")] {
        let writes = m.create(id, order(name, &["pier"], 10.0, 1.0), 10).unwrap();
        put(&mut m, writes);
        run(&mut m, id, |_| false);
    }
    let check = Action::Do(Step::Verify { access: "cell-1".into() });
    let names = |m: &Manager| {
        let expected = m.verified("cell-1", "s1", &check);
        let others = expected.others.map(|others| others.into_iter().collect::<Vec<_>>());
        (expected.shares.into_iter().map(|share| share.name).collect::<Vec<_>>(), others.unwrap())
    };
    let all = ["video", "voice", "rest of it"].map(str::to_owned).to_vec();
    assert_eq!(names(&m), (all.clone(), vec![]));
    let writes = m.remove("s2", false, 20).unwrap();
    put(&mut m, writes);
    assert_eq!(names(&m), (vec![all[0].clone(), all[2].clone()], vec![all[1].clone()]));
    run(&mut m, "s2", |_| false);
    assert_eq!(names(&m), (vec![all[0].clone(), all[2].clone()], vec![]));
    // The slice's own change is what is verified.
    let writes = m.modify("s1", order("video", &["pier"], 20.0, 1.0), 30).unwrap();
    put(&mut m, writes);
    let own = m.verified("cell-1", "s1", &check).shares.into_iter().find(|share| share.name == "video");
    assert_eq!(own.map(|share| share.share_ppm), Some(m.slice("s1").unwrap().wanted["cell-1"].share_ppm));
}

/// A slice whose removal waits for one cell reserves nothing at the others, and does not prevent their health checks.
#[test]
fn a_removal_waiting_for_one_cell_does_not_affect_others() {
    let mut m = manager();
    for (id, places) in [("s1", &["pier", "far"][..]), ("s2", &["pier"]), ("s3", &["far"])] {
        let writes = m.create(id, order(id, places, 20.0, 1.0), 10).unwrap();
        put(&mut m, writes);
        run(&mut m, id, |_| false);
    }
    let names = |m: &Manager, access: &str| {
        let expected = m.expected_configuration(access)?;
        let others = expected.others.unwrap().into_iter().collect::<Vec<_>>();
        Some((expected.shares.into_iter().map(|share| share.name).collect::<Vec<_>>(), others))
    };
    let writes = m.remove("s1", false, 20).unwrap();
    put(&mut m, writes);
    let waits = Some((vec!["s2".to_owned()], vec!["s1".to_owned()]));
    assert_eq!(names(&m, "cell-1"), waits);
    let writes = m.step_done("s1", Ok(()), 21).unwrap();
    put(&mut m, writes);
    let writes = m.step_done("s1", Err("no answer".into()), 22).unwrap();
    put(&mut m, writes);
    assert_eq!(names(&m, "cell-1"), Some((vec!["s2".to_owned()], vec![])));
    assert_eq!(names(&m, "cell-2"), Some((vec!["s3".to_owned()], vec!["s1".to_owned()])));
    assert_eq!(
        (m.ledger(None).promised("cell-1").0, m.ledger(None).promised("cell-2").0),
        (20_000_000, 40_000_000)
    );
    // A change, in contrast, does.
    let writes = m.modify("s2", order("s2", &["pier"], 30.0, 1.0), 23).unwrap();
    put(&mut m, writes);
    assert_eq!(names(&m, "cell-1"), None);
}

/// During a change, cells receive the new profile once it is this slice's turn there, and the old one after the change failed.
#[test]
fn a_failed_change_restores_the_shares_sent_to_cells() {
    let mut m = manager();
    for id in ["s1", "s2"] {
        let mut order = order(id, &[], 20.0, 1.0);
        (order.profile.dl_slice.max, order.profile.ul_slice.max) = (Some(30_000.0), Some(10_000.0));
        let writes = m.create(id, order, 10).unwrap();
        put(&mut m, writes);
        run(&mut m, id, |_| false);
    }
    let (before, far) = (m.shares_now("cell-1"), m.shares_now("cell-2"));
    let mut other = order("s1", &[], 20.0, 1.0);
    (other.profile.dl_slice.max, other.profile.ul_slice.max) = (Some(60_000.0), Some(10_000.0));
    other.profile.sharing = Some("NON-SHARED".into());
    let qos = serde_json::json!([{"priority_level": 7}]);
    other.profile.other.insert("qosParameters".into(), qos);
    let writes = m.modify("s1", other, 20).unwrap();
    put(&mut m, writes);
    assert_eq!(m.shares_now("cell-1"), before, "not yet");
    let of_other = |m: &Manager, access: &str| {
        m.shares(access, "s2", &Action::Do(Step::Shares { access: access.to_owned() }))
    };
    assert_eq!(of_other(&m, "cell-1"), before, "nor by another's step");
    let told = m.shares("cell-1", "s1", &m.todo().next().unwrap().1.unwrap());
    assert_eq!((told[0].max_ppm, told[0].dedicated_ppm, told[0].priority), (600_000, 200_000, 7));
    let writes = m.step_done("s1", Ok(()), 21).unwrap();
    put(&mut m, writes);
    // Applied at one of the two.
    assert_eq!((m.shares_now("cell-1"), of_other(&m, "cell-1")), (told.clone(), told));
    assert_eq!((m.shares_now("cell-2"), of_other(&m, "cell-2")), (far.clone(), far.clone()));
    let mut undone = BTreeMap::new();
    for _ in 0..32 {
        let Some((_, Some(action))) = m.todo().next() else { break };
        if let Action::Undo(Step::Shares { access }) = &action {
            undone.insert(access.clone(), m.shares(access, "s1", &action));
        }
        let fails = matches!(action, Action::Do(Step::Verify { .. }));
        let writes = m.step_done("s1", if fails { Err("no".into()) } else { Ok(()) }, 22).unwrap();
        put(&mut m, writes);
    }
    assert_eq!((undone["cell-1"].clone(), undone["cell-2"].clone()), (before.clone(), far));
    assert_eq!(m.shares_now("cell-1"), before);
}

/// A UE's need does not retry a failed slice, in particular not at other accesses.
#[test]
fn a_failed_slice_does_not_grow() {
    let mut m = manager();
    put(&mut m, vec![Write::ue(ue("phone"))]);
    let here = SliceRequest { accesses: vec!["cell-1".into()], ..order("video", &[], 10.0, 1.0) };
    let writes = m.create("s1", here, 0).unwrap();
    put(&mut m, writes);
    let writes = m.assign("phone", "s1", None).unwrap();
    put(&mut m, writes);
    run(&mut m, "s1", |_| true);
    assert!(matches!(m.slice("s1").unwrap().state, State::Failed(_)));
    for mbps in [1, 20, 150] {
        let refused = m.grow("phone", "s1", mbps * 1_000_000, 0, 1_000);
        assert_eq!(refused, Err(Illegal { from: "Failed", what: "grow" }.into()), "{mbps}");
    }
}

#[test]
fn no_slice_has_the_name_of_another_or_of_the_rest_at_a_cell() {
    let rest = |mut access: Access| {
        access.rest_slice = "best-effort".into();
        access
    };
    let inventory =
        Inventory::new([rest(access("cell-1", "pier", 100)), access("cell-2", "far", 200)]).unwrap();
    let mut m = Manager::new(inventory, GrowthLimits::default());
    let names = ["best-effort", "default", "video-00000002", "video", "video", "video-00000005-id"];
    for (n, name) in names.iter().enumerate() {
        // Identifiers with equal prefixes, which are rare.
        let id = format!("{:08}-id{n}", if n == 4 { 3 } else { n });
        let writes = m.create(&id, order(name, &["pier"], 1.0, 1.0), 1).unwrap();
        put(&mut m, writes);
    }
    let all: BTreeSet<&str> = m.slices().values().map(|s| s.cell_name.as_str()).collect();
    assert_eq!(all.len(), names.len(), "{all:?}");
    assert!(!all.contains("best-effort") && !all.contains("default"), "{all:?}");
}
