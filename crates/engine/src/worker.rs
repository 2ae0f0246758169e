//! A data-path thread: a tunnel end with a queue of the inner interface and a socket per access.
//!
//! ```text
//!            ┌────────────── worker ───────────────┐
//!  TUN queue │ receive ─▶ TunnelEnd::inner ───▶ Sockets  │ UDP sockets (one per access)
//!   ◀────────│ Inner  ◀── TunnelEnd::datagram ◀─ Inbox   │◀────────
//!            └──▲──────────────▲──────────────┬────┘
//!            timers      jobs (queue+wake)    events (channel)
//! ```
//!
//! Nothing is allocated or locked per packet. The control plane sends closures that run between two batches
//! ([`thread::Handle::run`]), so the tunnel end needs no locks and no copies of its state.

use super::deferred::{ApplyResult, Arrival, DeferredTask, ExecutionContext, WorkQueue};
use super::device::{Device, DeviceCounters};
use super::fast::{CollectReason, Fast, FastStatus};
use super::handover::{Handover, Kind};
use super::inner::Inner;
use super::udp::{AccessSocket, Inbox, SocketCounters, Sockets};
use crate::clock::Clock;
use crate::thread::{self, Jobs, MAX_JOBS};
use anabranch_atsss::fast::{FastLane, FastTraffic};
use anabranch_atsss::{DatagramSink, MAX_PATHS, PacketSink, PathId};
use anabranch_element::time::Instant;
use anyhow::Context;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A tunnel end as the data path drives it: the batch interface of the state machines.
pub trait TunnelEnd: Send + Sized + 'static {
    /// Type of its events.
    type Event: Send + 'static;
    /// Whether it has work that takes longer than packets may wait.
    const DEFERS: bool = false;

    /// Runs `worker` until it is stopped: a call of [`Worker::run_until_stopped`]. With it in the crate of the end, the
    /// functions for every packet are compiled there, with its optimisation.
    ///
    /// # Errors
    /// A device or socket failed.
    fn run(worker: Worker<Self>) -> anyhow::Result<()>;
    /// Processes an inner packet from the interface.
    fn inner(&mut self, packet: &mut [u8], now: Instant, out: &mut impl DatagramSink);
    /// Processes a datagram received over `access`; returns whether it was authentic.
    fn datagram(
        &mut self,
        access: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        now: Instant,
        out: &mut impl DatagramSink,
        inner: &mut impl PacketSink,
    ) -> bool;
    /// Runs the timers that are due.
    fn poll(&mut self, now: Instant, out: &mut impl DatagramSink, inner: &mut impl PacketSink);
    /// Time of the next call of [`TunnelEnd::poll`].
    fn poll_timeout(&self) -> Option<Instant>;
    /// The next event, oldest first.
    fn poll_event(&mut self) -> Option<Self::Event>;
    /// Reports traffic on a lane of the kernel's fast path; returns whether the lane may be renewed.
    fn carried(&mut self, _lane: &FastLane, _traffic: &FastTraffic, _now: Instant) -> bool {
        false
    }
    /// Long-running work caused by the last datagram.
    fn poll_work(&mut self) -> Option<DeferredTask<Self>> {
        None
    }
    /// Discards such work, because the queue is full.
    fn drop_work(&mut self) {}
    /// The worker that serves the session of this datagram, if known; called only if there are several
    /// workers.
    fn owner_of_datagram(&mut self, _datagram: &[u8]) -> Option<usize> {
        None
    }
    /// The worker that serves the session of this inner packet.
    fn owner_of_packet(&mut self, _packet: &[u8]) -> Option<usize> {
        None
    }
}

/// Counters of a worker since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Per access; zero without a socket.
    pub sockets: Vec<SocketCounters>,
    /// Counters of the inner interface.
    pub device: DeviceCounters,
    /// Packets handed over to the worker that serves their session.
    pub handed_over: u64,
    /// Packets dropped because that worker's queue was full.
    pub handover_full: u64,
    /// Events that the control plane did not take in time.
    pub events_lost: u64,
    /// Counters of the kernel's fast path.
    pub fast: FastStatus,
}

/// The control plane's handle of a worker.
pub type Handle<E> = thread::Handle<Worker<E>>;

const WAKER: Token = Token(0);
const DEVICE: Token = Token(1);
const LANE: Token = Token(2);
const FIRST_SOCKET: usize = 3;
/// Maximum number of inner packets per round, so that a busy uplink does not starve the downlink.
const ROUND_PACKETS: usize = 256;
/// Maximum number of frames per round.
const ROUND_FRAMES: usize = 64;

/// Period over which a polling worker measures how much of its core other threads use.
const WINDOW: Duration = Duration::from_millis(10);
/// A yield that takes longer than this means that another thread used the core.
const WAITED: Duration = Duration::from_micros(20);
/// Fraction of the period: if others use more than a CONTENDED-th, the core is contended.
const CONTENDED: u32 = 8;
/// Duration of the pause without polling after contention; doubled each time, up to the second value.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// A worker that is ready to run.
pub struct Worker<E: TunnelEnd> {
    /// The tunnel end.
    pub end: E,
    clock: Clock,
    device: Inner,
    sockets: Sockets,
    past: [SocketCounters; MAX_PATHS],
    inbox: Inbox,
    poll: Poll,
    jobs: Jobs<Self>,
    events: mpsc::Sender<E::Event>,
    handover: Option<Handover>,
    /// Queue for long-running work; `None`: it is done here.
    deferred: Option<WorkQueue<E>>,
    counters: WorkerCounters,
    /// Time for which to poll for packets instead of sleeping.
    spin: Option<Duration>,
    spin_until: Option<Instant>,
    /// Start of the current measurement period, and time in it for which others used the core.
    window: (Instant, Duration),
    /// Time before which there is no polling, and duration of the next pause.
    spin_after: Instant,
    back_off: Duration,
    /// Whether the device of the TCP lane may have packets.
    lane_ready: bool,
    stop: bool,
}

impl<E: TunnelEnd> Worker<E> {
    /// Registers all event sources. `events` receives the end's events.
    pub fn new(
        end: E,
        clock: Clock,
        device: Device,
        accesses: Vec<Option<AccessSocket>>,
        events: mpsc::Sender<E::Event>,
    ) -> anyhow::Result<(Self, Handle<E>)> {
        let poll = Poll::new().context("epoll")?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).context("eventfd")?);
        register(&poll, &device, DEVICE, Interest::READABLE).context("device")?;
        let mut sockets = Sockets::new(accesses);
        for (i, socket) in sockets.iter_mut() {
            register(&poll, socket, Token(FIRST_SOCKET + i), Interest::READABLE).context("socket")?;
        }
        let (handle, jobs) = Handle::new(waker);
        let worker = Self {
            end,
            clock,
            device: Inner { main: device, lane: None },
            sockets,
            past: [SocketCounters::default(); MAX_PATHS],
            inbox: Inbox::default(),
            poll,
            jobs,
            events,
            handover: None,
            deferred: None,
            counters: WorkerCounters::default(),
            spin: None,
            spin_until: None,
            window: (Instant::from_nanos(0), Duration::ZERO),
            spin_after: Instant::from_nanos(0),
            back_off: BACK_OFF[0],
            lane_ready: true,
            stop: false,
        };
        Ok((worker, handle))
    }

    /// Sets the time for which to poll for more packets instead of sleeping.
    pub fn spin(&mut self, time: Duration) {
        self.spin = (time > Duration::ZERO).then_some(time);
    }

    /// Enables the kernel's fast path for flows that need no further decision.
    pub fn set_fast(&mut self, fast: Option<Fast>) {
        self.sockets.set_fast(fast);
    }

    /// Makes it one of several workers (see [`Handover::mesh`]).
    pub fn join(&mut self, handover: Handover) {
        self.handover = Some(handover);
    }

    /// Sends long-running work to another thread.
    pub fn defer(&mut self, queue: WorkQueue<E>) {
        self.deferred = Some(queue);
    }

    /// Applies the result of deferred work that a datagram with this arrival caused.
    pub fn answer(&mut self, answer: ApplyResult<E>, arrival: Arrival, now: Instant) {
        let Arrival { access, from, local } = arrival;
        self.sockets.begin(access, from, local);
        answer(&mut self.end, now, &mut self.sockets);
        self.sockets.end(access, false);
        self.sockets.flush();
    }

    /// Current counters.
    pub fn counters(&mut self) -> WorkerCounters {
        let mut sockets = self.past.to_vec();
        for (i, socket) in self.sockets.iter_mut() {
            add(&mut sockets[i], socket.counters());
        }
        sockets.truncate(self.sockets.len());
        let fast = self.sockets.fast().map(|fast| fast.status()).unwrap_or_default();
        WorkerCounters { sockets, device: self.device.main.counters(), fast, ..self.counters.clone() }
    }

    /// Replaces the socket of an access; `None` removes it.
    pub fn replace_socket(&mut self, access: usize, socket: Option<AccessSocket>) -> std::io::Result<()> {
        if let Some(socket) = &socket {
            register(&self.poll, socket, Token(FIRST_SOCKET + access), Interest::READABLE)?;
        }
        if let Some(old) = self.sockets.replace(access, socket) {
            add(&mut self.past[access], old.counters());
            self.poll.registry().deregister(&mut SourceFd(&old.as_raw_fd()))?;
        }
        Ok(())
    }

    /// Replaces the device of the TCP lane; `None` removes it.
    pub fn replace_lane(&mut self, device: Option<Device>) -> std::io::Result<()> {
        if let Some(device) = &device {
            register(&self.poll, device, LANE, Interest::READABLE)?;
        }
        if let Some(old) = std::mem::replace(&mut self.device.lane, device) {
            self.poll.registry().deregister(&mut SourceFd(&old.as_raw_fd()))?;
        }
        self.lane_ready = true;
        Ok(())
    }

    /// The last send error of each access since the previous call.
    pub fn send_errors(&mut self) -> Vec<(usize, std::io::Error)> {
        self.sockets.iter_mut().filter_map(|(i, s)| Some((i, s.take_error()?))).collect()
    }
}

impl<E: TunnelEnd> thread::Worker for Worker<E> {
    fn run(self) -> anyhow::Result<()> {
        E::run(self)
    }

    fn stop(&mut self) {
        self.stop = true;
    }
}

impl<E: TunnelEnd> Worker<E> {
    /// The body of [`TunnelEnd::run`].
    ///
    /// # Errors
    /// A device or socket failed.
    pub fn run_until_stopped(mut self) -> anyhow::Result<()> {
        let mut epoll = Events::with_capacity(64);
        // epoll is edge-triggered: a readable descriptor is read until EAGAIN.
        let (mut device_ready, mut sockets_ready) = (true, u32::MAX);
        while !self.stop {
            let mut timeout = Some(Duration::ZERO);
            if !device_ready && !self.lane_ready && sockets_ready == 0 {
                let spin = self.spin_until.is_some_and(|until| self.clock.now() < until);
                if !(spin && self.core_is_free()) {
                    timeout = self.until_deadline();
                }
            }
            let slept = timeout != Some(Duration::ZERO);
            match self.poll.poll(&mut epoll, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("epoll"),
            }
            for event in &epoll {
                match event.token() {
                    WAKER => {}
                    DEVICE => device_ready = true,
                    LANE => self.lane_ready = true,
                    Token(t) => sockets_ready |= 1 << (t - FIRST_SOCKET),
                }
            }
            self.downlink(&mut sockets_ready)?;
            if device_ready {
                device_ready = self.uplink(false, slept)?;
            }
            if self.lane_ready {
                self.lane_ready = self.uplink(true, slept)?;
            }
            self.handed_over();
            self.housekeeping(&mut sockets_ready);
        }
        Ok(())
    }

    /// Receives once from every readable socket.
    fn downlink(&mut self, ready: &mut u32) -> anyhow::Result<()> {
        let Self { end, sockets, device, inbox, handover, deferred, counters, .. } = self;
        let (mut left, mut worked) = (*ready, None);
        while left != 0 {
            let access = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(socket) = sockets.get_mut(access) else {
                *ready &= !(1 << access);
                continue;
            };
            let filled = inbox.receive(socket).with_context(|| format!("receiving on access {access}"))?;
            if !Inbox::may_be_more(filled) {
                *ready &= !(1 << access);
            }
            if filled == 0 {
                continue;
            }
            let now = self.clock.now();
            if let Some(fast) = sockets.fast() {
                fast.collect(end, now, CollectReason::Received);
            }
            let access = access as PathId;
            inbox.for_each(|from, local, datagram| {
                if let Some(handover) = handover
                    && let Some(owner) = end.owner_of_datagram(datagram)
                    && owner != handover.index()
                {
                    count(counters, handover.give(owner, Kind::Outer { access, from, local }, datagram));
                    return;
                }
                let arrival = Arrival { access, from, local };
                receive(arrival, datagram, now, end, sockets, device, deferred.as_mut());
            });
            device.flush();
            sockets.flush();
            worked = Some(now);
        }
        if let Some(now) = worked {
            self.worked(now);
            // An answer to a probe states what was sent before it, so it has to leave before packets that are read later.
            self.poll_end(now);
        }
        Ok(())
    }

    /// Reads the inner interface or, if `lane`, that of the TCP lane; true if there may be more. If the
    /// worker was asleep, the first packets are sent at once, so that the peer wakes up while the rest is
    /// read.
    fn uplink(&mut self, lane: bool, slept: bool) -> anyhow::Result<bool> {
        let Self { end, sockets, device, handover, counters, .. } = self;
        let device = if lane { device.lane.as_mut() } else { Some(&mut device.main) };
        let Some(device) = device else { return Ok(false) };
        let now = self.clock.now();
        let (mut packets, mut more, mut lane_gone) = (0, true, false);
        for frame in 0..ROUND_FRAMES {
            let read = device.receive(|packet| {
                if let Some(handover) = handover
                    && let Some(owner) = end.owner_of_packet(packet)
                    && owner != handover.index()
                {
                    count(counters, handover.give(owner, Kind::Inner, packet));
                    return;
                }
                end.inner(packet, now, sockets);
            });
            let n = match read {
                // The lane's namespace, and with it the lane, has disappeared; the session continues.
                Err(error) if lane => {
                    tracing::warn!("reading the device of the TCP lane: {error}");
                    lane_gone = true;
                    0
                }
                other => other.context("reading the device; was it removed?")?,
            };
            packets += n;
            more = n > 0;
            if slept && frame == 0 {
                sockets.flush();
            }
            if !more || packets >= ROUND_PACKETS {
                break;
            }
        }
        sockets.flush();
        if lane_gone {
            self.device.lane = None;
        }
        if packets > 0 {
            self.worked(now);
        }
        Ok(more)
    }

    /// Yields the core to other threads. If they use a large part of it, polling pauses, because a thread
    /// that sleeps is scheduled sooner than one that has used up its share.
    fn core_is_free(&mut self) -> bool {
        let before = self.clock.now();
        std::thread::yield_now();
        let now = self.clock.now();
        let (from, waited) = &mut self.window;
        let (one, elapsed) = (now.saturating_since(before), before.saturating_since(*from));
        if elapsed > 2 * WINDOW {
            // The worker has slept in between.
            (*from, *waited) = (before, Duration::ZERO);
        }
        if one > WAITED {
            *waited += one;
        }
        let elapsed = now.saturating_since(*from);
        if elapsed < WINDOW {
            return true;
        }
        let free = *waited < elapsed / CONTENDED;
        (*from, *waited) = (now, Duration::ZERO);
        if !free {
            self.spin_until = None;
            self.spin_after = now + self.back_off;
            self.back_off = (2 * self.back_off).min(BACK_OFF[1]);
        } else if now.saturating_since(self.spin_after) > self.back_off {
            self.back_off = BACK_OFF[0];
        }
        free
    }

    /// Starts polling after input, because more may follow soon.
    fn worked(&mut self, now: Instant) {
        if let Some(spin) = self.spin
            && now >= self.spin_after
        {
            self.spin_until = Some(now + spin);
        }
    }

    fn handed_over(&mut self) {
        let Self { end, sockets, device, handover, deferred, .. } = self;
        let Some(handover) = handover else { return };
        handover.wake_receivers();
        let now = self.clock.now();
        let taken = handover.take(|kind, bytes| match kind {
            Kind::Outer { access, from, local } => {
                let arrival = Arrival { access, from, local };
                receive(arrival, bytes, now, end, sockets, device, deferred.as_mut());
            }
            Kind::Inner => end.inner(bytes, now, sockets),
        });
        if taken > 0 {
            device.flush();
            sockets.flush();
        }
    }

    /// Runs timers, jobs and events.
    fn housekeeping(&mut self, sockets_ready: &mut u32) {
        let now = self.clock.now();
        for _ in 0..MAX_JOBS {
            let Some(job) = self.jobs.pop() else { break };
            job(self, now);
            // A replaced socket may already have datagrams.
            *sockets_ready = u32::MAX;
        }
        if let Some((work, arrival)) = self.deferred.as_mut().and_then(|queue| queue.overdue(now)) {
            self.answer(work(ExecutionContext::Worker), arrival, now);
        }
        self.poll_end(now);
        while let Some(event) = self.end.poll_event() {
            if self.events.try_send(event).is_err() {
                self.counters.events_lost += 1;
            }
        }
    }

    /// Lets the tunnel end send what is due.
    fn poll_end(&mut self, now: Instant) {
        let Self { end, sockets, device, .. } = self;
        if let Some(fast) = sockets.fast() {
            let due = end.poll_timeout().is_some_and(|at| at <= now);
            fast.collect(end, now, if due { CollectReason::Sending } else { CollectReason::IfDue });
        }
        if end.poll_timeout().is_some_and(|at| at <= now) {
            end.poll(now, sockets, device);
            device.flush();
            sockets.flush();
        }
    }

    fn until_deadline(&self) -> Option<Duration> {
        if self.handover.as_ref().is_some_and(|h| !h.is_empty()) || !self.jobs.is_empty() {
            return Some(Duration::ZERO);
        }
        let overdue = self.deferred.as_ref().and_then(WorkQueue::next_look);
        let next = [self.end.poll_timeout(), self.sockets.next_look(), overdue].into_iter().flatten().min();
        next.map(|at| at.saturating_since(self.clock.now()))
    }
}

/// Processes a datagram, and queues the work that it caused.
fn receive<E: TunnelEnd>(
    arrival: Arrival,
    datagram: &mut [u8],
    now: Instant,
    end: &mut E,
    sockets: &mut Sockets,
    device: &mut Inner,
    mut deferred: Option<&mut WorkQueue<E>>,
) {
    let Arrival { access, from, local } = arrival;
    sockets.begin(access, from, local);
    let authentic = end.datagram(access, from, datagram, now, sockets, device);
    while let Some(work) = end.poll_work() {
        match &mut deferred {
            Some(queue) => {
                if !queue.give((work, arrival), now) {
                    end.drop_work();
                }
            }
            None => work(ExecutionContext::Worker)(end, now, sockets),
        }
    }
    sockets.end(access, authentic);
}

fn register(poll: &Poll, source: &impl AsRawFd, token: Token, interest: Interest) -> std::io::Result<()> {
    poll.registry().register(&mut SourceFd(&source.as_raw_fd()), token, interest)
}

fn count(counters: &mut WorkerCounters, given: bool) {
    if given {
        counters.handed_over += 1;
    } else {
        counters.handover_full += 1;
    }
}

fn add(to: &mut SocketCounters, more: SocketCounters) {
    let SocketCounters {
        rx_datagrams,
        rx_buffers,
        rx_bytes,
        tx_datagrams,
        tx_batches,
        tx_bytes,
        tx_full,
        tx_too_big,
        tx_errors,
    } = more;
    to.rx_datagrams += rx_datagrams;
    to.rx_buffers += rx_buffers;
    to.rx_bytes += rx_bytes;
    to.tx_datagrams += tx_datagrams;
    to.tx_batches += tx_batches;
    to.tx_bytes += tx_bytes;
    to.tx_full += tx_full;
    to.tx_too_big += tx_too_big;
    to.tx_errors += tx_errors;
}
