use super::*;
use crate::slice::inventory::Access;
use crate::slice::profile::Thpt;
use crate::slice::view::{self, SliceFacts};
use proptest::prelude::*;

fn access(name: &str, location: &str, mbps: u64) -> Access {
    Access {
        name: name.into(),
        location: location.into(),
        downlink_bps: mbps * 1_000_000,
        uplink_bps: mbps * 500_000,
        max_share_ppm: 900_000,
        delay_ms: if location == "far" { 20.0 } else { 5.0 },
    }
}

fn manager() -> Manager {
    Manager::new(Inventory::new([access("cell-1", "pier", 100), access("cell-2", "far", 200)]).unwrap())
}

fn order(name: &str, coverage: &[&str], dl_mbps: f64, ul_mbps: f64) -> Order {
    let thpt = |mbps: f64| Thpt { gua: Some(mbps * 1e3), max: None };
    let profile = ServiceProfile {
        sst: 1,
        dl_slice: thpt(dl_mbps),
        ul_slice: thpt(ul_mbps),
        coverage: coverage.iter().map(|c| (*c).to_owned()).collect(),
        ..ServiceProfile::default()
    };
    Order { name: name.into(), profile, ..Order::default() }
}

fn put(manager: &mut Manager, writes: Vec<Write>) {
    for write in writes {
        // As through the database.
        let Write { kind, id, record } = write;
        let record = record.map(|r| Record::from_json(kind, &r.to_json().unwrap()).unwrap());
        manager.put(Write { kind, id, record });
    }
}

/// Does every step; those for which `fails` is true fail.
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

#[test]
fn what_fails_is_undone() {
    let mut m = manager();
    let writes = m.create("s1", order("video", &["pier", "far", "moon"], 40.0, 5.0), 10).unwrap();
    put(&mut m, writes);
    assert_eq!(m.slice("s1").unwrap().not_supported, ["moon"]);
    run(&mut m, "s1", |a| matches!(a, Action::Do(Step::Shares { access }) if access == "cell-2"));
    let slice = m.slice("s1").unwrap();
    assert_eq!(slice.state, State::Failed("cell says no".into()));
    assert!(slice.reserved().is_empty());

    // A cell that cannot be told to go back may still have it: that stays reserved until it can.
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
fn a_change_that_fails_leaves_the_slice_as_it_was() {
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

#[test]
fn refusals_say_why() {
    let m = manager();
    let why = |order| m.create("x", order, 0).unwrap_err().to_string();
    assert!(
        why(order("a", &["pier"], 95.0, 1.0)).contains("\"cell-1\" has 900000 millionths of the RBs left")
    );
    assert!(why(order("a", &["moon"], 1.0, 1.0)).contains("no access serves \"moon\""));
    let mut fast = order("a", &["far"], 1.0, 1.0);
    fast.profile.dl_latency = Some(10.0);
    assert!(why(fast).contains("\"far\" within 10 ms"));
    let there = Order { accesses: vec!["cell-9".into()], ..order("a", &[], 1.0, 1.0) };
    assert!(why(there).contains("no access \"cell-9\""));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]
    /// Whatever is asked for in whatever order, by operators and by UEs, and whatever fails: neither what is reserved nor
    /// what the cells were told exceeds what there is, and no slice grows past its maximum.
    #[test]
    fn admission_never_exceeds_capacity(
        ops in prop::collection::vec((0_u8..14, 0_usize..4, 0_u32..120, 0_u32..70, prop::bool::weighted(0.8)), 1..100)
    ) {
        let mut m = manager();
        let assignment = |i: usize| Assignment { slice: format!("s{i}"), cell_ue: None, attachment: Attachment::Active };
        put(&mut m, vec![Write::ue(Ue { slices: (0..4).map(assignment).collect(), ..ue("phone") })]);
        // What each cell has: the last list it was told, which may be one that it then said it refused.
        let mut told: BTreeMap<String, u64> = BTreeMap::new();
        for (i, (op, at, dl, ul, flag)) in ops.into_iter().enumerate() {
            let id = format!("s{at}");
            let places: &[&str] = match (dl % 3, flag) { (0, _) => &["pier"], (1, _) => &["far"], _ => &[] };
            let mut order = order(&format!("n{}", at % 2), places, dl.into(), ul.into());
            order.profile.dl_slice.max = (ul % 2 == 0).then(|| f64::from(dl) * 1.5e3);
            let now = i as u64;
            let result = match op {
                0 | 1 => m.create(&id, order, now),
                2 => m.modify(&id, order, now),
                3 => m.remove(&id, flag, now),
                4 | 5 => {
                    m.grow("phone", &id, u64::from(dl) * 1_000_000, u64::from(ul) * 1_000_000, now)
                }
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
            }
        }
    }
}
