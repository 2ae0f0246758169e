//! One run of a plan: the part with faults, then the part without.

use super::check::{Invariant, Tally, Violation};
use super::ledger::Service;
use super::plan::{Kind, Mode, Plan};
use super::system::{self, FaultSchedule, Span, World as _};
use super::world::World;
use anabranch_element::time::Duration;

/// Time until sessions and paths are up again.
const CONVERGES: Duration = Duration::from_secs(30);
/// The same if UEs were refused or could not identify themselves; covers their longest retry interval.
const CONVERGES_REFUSED: Duration = Duration::from_secs(130);
/// Duration of traffic without faults, all of which must arrive.
const QUIET_TIME: Duration = Duration::from_secs(2);
/// Time until all packets in transit have arrived.
const DELIVERY_TIME: Duration = Duration::from_secs(2);
/// Time until reliable flows have delivered everything.
const COMPLETION_TIME: Duration = Duration::from_secs(30);
/// Time until sessions are idle: unstable paths are monitored for a minute.
const IDLE_TIME: Duration = Duration::from_secs(100);

/// Time until the keys of unused sessions have expired and their resources are released.
const EXPIRY_TIME: Duration = Duration::from_secs(200);
/// Time until pending failures, such as a path forgotten by a middlebox, are detected.
const DETECTION_TIME: Duration = Duration::from_secs(5);

/// Age from which a packet has either arrived or is lost.
const IN_TRANSIT_TIME: Duration = Duration::from_secs(1);

/// Result of the part with faults.
struct Faulted {
    span: Span,
    services: Vec<[Service; 2]>,
}

/// One run of a plan.
///
/// # Errors
/// The invariant that was violated.
pub fn whole(plan: &Plan, tally: &mut Tally, trace: &mut Option<Vec<String>>) -> Result<(), Violation> {
    let mut world = World::new(plan, trace.is_some());
    let result = faulted(&mut world, plan, FaultSchedule::Steps).and_then(|faulted| {
        after(&mut world, plan)?;
        Ok(faulted)
    });
    world.run_state.report(tally, trace);
    let faulted = result?;
    if (plan.hostile || plan.strangers) && plan.is_comparable() {
        independent(plan, &faulted, tally, world.run_state.step)?;
    }
    Ok(())
}

/// Runs the part with faults.
fn faulted(world: &mut World, plan: &Plan, when: FaultSchedule<'_>) -> Result<Faulted, Violation> {
    let span = system::faulted(world, plan, when)?;
    // Packets in transit count for neither run.
    let services = world.ledger.services(world.run_state.now - IN_TRANSIT_TIME);
    Ok(Faulted { span, services })
}

/// Runs the part after the faults: everything must converge, work and become idle.
fn after(world: &mut World, plan: &Plan) -> Result<(), Violation> {
    world.measured()?;
    world.end_all()?;
    let refused = |kind: &Kind| {
        matches!(
            kind,
            Kind::SmallUpf { .. } | Kind::UeClock { .. } | Kind::UpfClock { .. } | Kind::Remove { .. }
        )
    };
    let refused = plan.faults.iter().any(|fault| refused(&fault.kind));
    let bound = if refused { CONVERGES_REFUSED } else { CONVERGES };
    world.pass(DETECTION_TIME)?;
    wait(world, bound, Invariant::Converges, World::unsettled)?;
    let first = world.ledger.next_number();
    world.pass(QUIET_TIME)?;
    world.drain = true;
    // Reliable flows run until they are complete; their packets from now on may still be in transit at the end.
    let end = world.ledger.next_number();
    world.pass(DELIVERY_TIME)?;
    for ue in 0..world.ues.len() {
        let lossless = world.ues[ue].lossless && {
            let (lines, tally) = (&mut world.lines[ue], &mut world.run_state.tally);
            lines.iter_mut().all(|line| line.dropped(world.run_state.now, tally) == 0)
        };
        let numbers = if lossless { 1 } else { first }..end;
        world.run_state.tally.count_check(if lossless { Invariant::Lossless } else { Invariant::Converges });
        if let Some(what) = world.ledger.missing(ue as u8, numbers) {
            let invariant = if lossless { Invariant::Lossless } else { Invariant::Converges };
            return Err(world.run_state.violation(invariant, format!("lost without a fault: {what}")));
        }
    }
    wait(world, COMPLETION_TIME, Invariant::Reliable, World::undone)?;
    wait(world, IDLE_TIME, Invariant::Empty, held)?;
    wait(world, EXPIRY_TIME, Invariant::Empty, kept)
}

/// Resources that idle honest sessions still hold, if any.
fn held(world: &World) -> Option<String> {
    world.ues.iter().enumerate().find_map(|(n, end)| {
        let upf = &world.upfs[end.home].upf;
        let held = upf.session(&end.entry.key).map(|session| session.held()).unwrap_or_default();
        let rests = upf.view(&end.entry.key).is_some_and(|view| view.connected && view.resting);
        (held != Default::default() || !rests)
            .then(|| format!("the session of UE {n} rests: {rests}; it holds {held:?}"))
    })
}

/// Resources that any session still holds once the keys of closed sessions have expired, if any.
fn kept(world: &World) -> Option<String> {
    world.upfs.iter().enumerate().find_map(|(n, end)| {
        let pool = end.upf.pool();
        let held = (pool.used_bytes(), pool.queues_used());
        let holders =
            end.upf.sessions().filter_map(|view| Some((view.ue, end.upf.session(&view.key)?.held())));
        (held != (0, 0)).then(|| {
            format!("UPF {n} holds {} bytes and {} queues: {:?}", held.0, held.1, holders.collect::<Vec<_>>())
        })
    })
}

fn wait(
    world: &mut World,
    bound: Duration,
    invariant: Invariant,
    open: impl Fn(&World) -> Option<String>,
) -> Result<(), Violation> {
    world.run_state.tally.count_check(invariant);
    system::wait(world, bound, invariant, open)
}

/// Repeats the run without attackers. Honest UEs must have been served as well with them.
fn independent(plan: &Plan, with: &Faulted, tally: &mut Tally, step: u64) -> Result<(), Violation> {
    let alone = Plan { hostile: false, strangers: false, ..plan.clone() };
    let mut world = World::new(&alone, false);
    let without = faulted(&mut world, &alone, FaultSchedule::Times(&with.span.began, with.span.ended))?;
    for (ue, (with, without)) in with.services.iter().zip(&without.services).enumerate() {
        for (way, with, without) in [("down", &with[0], &without[0]), ("up", &with[1], &without[1])] {
            tally.count_check(Invariant::Independent);
            // A stranger may deliver a packet that a partition dropped, a second late. That packet is additional and delays no other.
            let (slow, base) = (with.mean_us(without.delivered()), without.mean_us(usize::MAX));
            let fewer = with.delivered() + 4 + without.delivered() / 100 < without.delivered();
            // Attackers deliver copies of probes early, so packets may take another path while an access is slow.
            let another = slowed_us(plan, ue) / without.delivered().max(1) as u64;
            // The path of a pinned flow depends on a random key.
            let pinned = matches!(plan.ues[ue].mode, Mode::BalanceFlows | Mode::Autonomous);
            if fewer || (!pinned && slow > base + base / 20 + 500 + another) {
                let what = format!(
                    "UE {ue}, {way}: {} of {} packets in {slow} µs with attackers, {} of {} in {base} µs without",
                    with.delivered(),
                    with.sent,
                    without.delivered(),
                    without.sent
                );
                return Err(Violation { invariant: Invariant::Independent, step, what });
            }
        }
    }
    Ok(())
}

/// Total delay, microseconds, that the faults of a plan may add for one packet each.
fn slowed_us(plan: &Plan, ue: usize) -> u64 {
    let slowed = |kind: &Kind| match kind {
        Kind::Delay { place, delay_ms } if usize::from(place.ue) == ue => 1_000 * u64::from(*delay_ms),
        _ => 0,
    };
    plan.faults.iter().map(|fault| slowed(&fault.kind)).sum()
}

impl Plan {
    /// Whether the service with and without attackers can be compared: no draw depends on the number of packets.
    fn is_comparable(&self) -> bool {
        let harmless = |kind: &Kind| {
            matches!(
                kind,
                Kind::Quiet
                    | Kind::Burst { .. }
                    | Kind::Delay { .. }
                    | Kind::Partition { .. }
                    | Kind::Carrier { .. }
            )
        };
        self.faults.iter().all(|fault| harmless(&fault.kind))
    }
}
