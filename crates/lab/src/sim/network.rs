//! The network in virtual time: nodes, wires between their ports, and their deadlines.
//!
//! ```text
//!   first deadline ─▶ drive(node) ─▶ packets ─▶ wire ─▶ on_packet(peer) ─▶ drive(peer) ─▶ ...
//! ```
//!
//! Any [`Element`] is a node. A wire has no delay; a [`DuplexLink`](anabranch_link::DuplexLink) between two nodes adds delay,
//! rate limit and loss. Nothing happens between two deadlines, so an idle hour costs nothing. The order of all events follows
//! from the seeds and the order in which nodes were added: two runs of the same network give the same bytes.

use super::deadlines::Deadlines;
use super::router::Router;
use anabranch_element::packet::Packet;
use anabranch_element::time::Instant;
use anabranch_element::{Element, Port, Sink, drive};
use std::any::Any;
use std::collections::VecDeque;

/// A node of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

/// The network has a loop: packets move but time does not advance.
#[derive(Debug, thiserror::Error)]
#[error(
    "{steps} steps at {now} without time going on, the last at node \"{node}\"; look for a loop of wires"
)]
pub struct Stuck {
    /// Time at which the network is stuck.
    pub now: Instant,
    /// Steps at that time.
    pub steps: u64,
    /// Name of the node driven last.
    pub node: String,
}

/// A network; see the module documentation.
#[derive(Default)]
pub struct Network {
    nodes: Vec<Slot>,
    /// Deadline of each node.
    deadlines: Deadlines,
    now: Instant,
    wires: Wires,
    moved: u64,
}

/// Counters of a port of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortCount {
    /// Bytes sent by the node.
    pub out_bytes: u64,
    /// Bytes received by the node.
    pub in_bytes: u64,
}

struct Slot {
    name: String,
    node: NodeKind,
    ends: Vec<PortState>,
}

/// A node: a router, which packets pass in the same step, or another element.
enum NodeKind {
    Router(Box<ElementNode<Router>>),
    Other(Box<dyn Node>),
}

impl NodeKind {
    fn new<E: Element + 'static>(element: E) -> Self
    where
        E::Event: 'static,
    {
        let mut element = Some(element);
        let router = (&mut element as &mut dyn Any).downcast_mut::<Option<Router>>().and_then(Option::take);
        match element {
            Some(element) => Self::Other(Box::new(ElementNode::new(element))),
            // The router has been taken out already.
            None => Self::Router(Box::new(ElementNode::new(router.unwrap_or_default()))),
        }
    }

    #[inline]
    fn node(&mut self) -> &mut dyn Node {
        match self {
            Self::Router(node) => node.as_mut(),
            Self::Other(node) => node.as_mut(),
        }
    }
}

/// A port: its wire, if any, and its counters.
#[derive(Clone, Copy, Default)]
struct PortState {
    wire: Option<(NodeId, Port)>,
    out_bytes: u64,
    /// Bytes received are the bytes sent by the other end of the wire plus this, modulo 2^64.
    in_bytes_offset: u64,
}

/// Maximum number of events kept per node for [`Network::take_events`]; the oldest are dropped.
const MAX_EVENTS: usize = 1 << 16;
/// Steps at one instant after which the network counts as stuck.
const MAX_STEPS: u64 = 10_000_000;

impl Network {
    /// An empty network at time 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an element; it is driven for the first time when the network runs.
    pub fn add<E: Element + 'static>(&mut self, name: impl Into<String>, element: E) -> NodeId
    where
        E::Event: 'static,
    {
        self.add_node(name.into(), NodeKind::new(element))
    }

    /// As [`add`](Self::add), for an element with many events that carry their own times where needed. The events stay with the
    /// element until [`take_events`](Self::take_events), which returns them with the time of that call.
    pub fn add_untimed<E: Element + 'static>(&mut self, name: impl Into<String>, element: E) -> NodeId
    where
        E::Event: 'static,
    {
        self.add_node(name.into(), NodeKind::Other(Box::new(ElementNode { element, events: None })))
    }

    fn add_node(&mut self, name: String, node: NodeKind) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(Slot { name, node, ends: Vec::new() });
        self.deadlines.add();
        self.deadlines.set(id.0, self.now);
        id
    }

    /// Connects two ports in both directions. Replaces previous connections of these ports.
    pub fn connect(&mut self, a: (NodeId, Port), b: (NodeId, Port)) {
        self.disconnect(a);
        self.disconnect(b);
        for (from, to) in [(a, b), (b, a)] {
            let in_bytes = self.port_count(from).in_bytes;
            let other_bytes = self.port_count(to).out_bytes;
            let ends = &mut self.nodes[from.0.0 as usize].ends;
            let port = usize::from(from.1.0);
            if ends.len() <= port {
                ends.resize(port + 1, PortState::default());
            }
            ends[port].wire = Some(to);
            ends[port].in_bytes_offset = in_bytes.wrapping_sub(other_bytes);
        }
    }

    /// Disconnects a port, if it is connected.
    pub fn disconnect(&mut self, end: (NodeId, Port)) {
        if let Some(other) = self.wire(end) {
            let in_bytes = [end, other].map(|end| self.port_count(end).in_bytes);
            for ((node, port), in_bytes) in [end, other].into_iter().zip(in_bytes) {
                let end = &mut self.nodes[node.0 as usize].ends[usize::from(port.0)];
                (end.wire, end.in_bytes_offset) = (None, in_bytes);
            }
        }
    }

    /// Runs until `end`, inclusive; `now` is `end` afterwards.
    ///
    /// # Errors
    /// [`Stuck`] if packets move without time advancing.
    pub fn run_until(&mut self, end: Instant) -> Result<(), Stuck> {
        let mut since = self.moved;
        while let Some((at, id)) = self.deadlines.first() {
            if at > end {
                break;
            }
            if at > self.now {
                self.now = at;
                since = self.moved;
            }
            self.drive(NodeId(id));
            self.settle(since)?;
        }
        self.now = self.now.max(end);
        Ok(())
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Time of the next deadline.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| at)
    }

    /// An element by its type; `None` if the node is of another.
    pub fn get_mut<E: Element + 'static>(&mut self, id: NodeId) -> Option<&mut E>
    where
        E::Event: 'static,
    {
        self.node_mut::<E>(id).map(|node| &mut node.element)
    }

    /// Passes a command to an element now, and delivers the resulting packets. Returns false if the node is of another type.
    ///
    /// # Errors
    /// [`Stuck`] as in [`Network::run_until`].
    pub fn command<E: Element + 'static>(&mut self, id: NodeId, command: E::Command) -> Result<bool, Stuck>
    where
        E::Event: 'static,
    {
        let now = self.now;
        let Some(element) = self.get_mut::<E>(id) else { return Ok(false) };
        element.on_command(command, now);
        self.wake(id)?;
        Ok(true)
    }

    /// Drives a node now. Required after its element was changed through [`Network::get_mut`].
    ///
    /// # Errors
    /// [`Stuck`] as in [`Network::run_until`].
    pub fn wake(&mut self, id: NodeId) -> Result<(), Stuck> {
        self.drive(id);
        self.settle(self.moved)
    }

    /// Delivers a packet to a port of a node now, as if it had arrived over the wire.
    ///
    /// # Errors
    /// [`Stuck`] as in [`Network::run_until`].
    pub fn inject(&mut self, to: (NodeId, Port), packet: Packet) -> Result<(), Stuck> {
        let ends = self.nodes.get_mut(to.0.0 as usize).map_or(&mut [][..], |slot| &mut slot.ends);
        if let Some(end) = ends.get_mut(usize::from(to.1.0)) {
            end.in_bytes_offset = end.in_bytes_offset.wrapping_add(packet.len() as u64);
        }
        self.wires.push((to.0, to.1, packet));
        self.settle(self.moved)
    }

    /// The events of an element since the last call, oldest first, with their times; at most 65,536.
    pub fn take_events<E: Element + 'static>(
        &mut self,
        id: NodeId,
    ) -> impl Iterator<Item = (Instant, E::Event)> + use<'_, E>
    where
        E::Event: 'static,
    {
        let now = self.now;
        self.node_mut::<E>(id).into_iter().flat_map(move |ElementNode { element, events }| {
            let untimed =
                events.is_none().then(|| std::iter::from_fn(move || Some((now, element.poll_event()?))));
            events.iter_mut().flat_map(|events| events.drain(..)).chain(untimed.into_iter().flatten())
        })
    }

    /// The name given when the node was added.
    #[must_use]
    pub fn name(&self, id: NodeId) -> &str {
        self.nodes.get(id.0 as usize).map_or("", |slot| &slot.name)
    }

    /// Counters of a connected port since the start.
    #[must_use]
    pub fn port_count(&self, end: (NodeId, Port)) -> PortCount {
        let Some(PortState { wire, out_bytes, in_bytes_offset }) = self.end(end) else {
            return PortCount::default();
        };
        let other_bytes = wire.and_then(|other| self.end(other)).map_or(0, |other| other.out_bytes);
        PortCount { out_bytes: *out_bytes, in_bytes: in_bytes_offset.wrapping_add(other_bytes) }
    }

    /// Number of packets sent by a port without a wire.
    #[must_use]
    #[cfg(test)]
    pub fn packets_unconnected(&self) -> u64 {
        self.wires.unconnected
    }

    fn end(&self, (node, port): (NodeId, Port)) -> Option<&PortState> {
        self.nodes.get(node.0 as usize)?.ends.get(usize::from(port.0))
    }

    fn wire(&self, end: (NodeId, Port)) -> Option<(NodeId, Port)> {
        self.end(end)?.wire
    }

    fn node_mut<E: Element + 'static>(&mut self, id: NodeId) -> Option<&mut ElementNode<E>>
    where
        E::Event: 'static,
    {
        self.nodes.get_mut(id.0 as usize)?.node.node().as_any().downcast_mut::<ElementNode<E>>()
    }

    fn drive(&mut self, id: NodeId) {
        let Self { nodes, deadlines, wires, now, .. } = self;
        let slot = &mut nodes[id.0 as usize];
        let next = slot.node.node().drive(&mut PortSender { now: *now, ends: &mut slot.ends, wires });
        deadlines.set(id.0, next);
    }

    /// Delivers packets on the wires until there are none. `since`: number of packets moved when time last advanced.
    fn settle(&mut self, since: u64) -> Result<(), Stuck> {
        while let Some((to, port, packet)) = self.wires.pop() {
            self.deliver(to, port, packet, since)?;
        }
        Ok(())
    }

    /// Delivers a packet through all routers on its path.
    fn deliver(
        &mut self,
        mut to: NodeId,
        mut port: Port,
        mut packet: Packet,
        since: u64,
    ) -> Result<(), Stuck> {
        loop {
            self.moved += 1;
            if self.moved - since > MAX_STEPS {
                let node = self.name(to).to_owned();
                return Err(Stuck { now: self.now, steps: self.moved - since, node });
            }
            let Self { nodes, deadlines, wires, now, .. } = self;
            let Slot { node, ends, .. } = &mut nodes[to.0 as usize];
            let router = match node {
                NodeKind::Router(router) => router,
                NodeKind::Other(node) => {
                    let next = node.arrive(port, packet, &mut PortSender { now: *now, ends, wires });
                    deadlines.set(to.0, next);
                    return Ok(());
                }
            };
            let bytes = packet.len() as u64;
            let Some(out) = router.element.forward(&mut packet, *now) else {
                router.send_errors(&mut PortSender { now: *now, ends, wires });
                return Ok(());
            };
            let Some(PortState { wire: Some(next), out_bytes, .. }) = ends.get_mut(usize::from(out.0)) else {
                wires.unconnected += 1;
                return Ok(());
            };
            *out_bytes += bytes;
            (to, port) = *next;
        }
    }
}

/// An element whose type is erased.
trait Node {
    /// Delivers a packet and drives the element. Returns the next deadline; [`Instant::MAX`]: none.
    fn arrive(&mut self, port: Port, packet: Packet, sender: &mut PortSender<'_>) -> Instant;
    /// Drives the element. Returns the next deadline.
    fn drive(&mut self, sender: &mut PortSender<'_>) -> Instant;
    fn as_any(&mut self) -> &mut dyn Any;
}

struct ElementNode<E: Element> {
    element: E,
    /// `None`: events stay with the element.
    events: Option<VecDeque<(Instant, E::Event)>>,
}

impl<E: Element> ElementNode<E> {
    fn new(element: E) -> Self {
        Self { element, events: Some(VecDeque::new()) }
    }
}

impl ElementNode<Router> {
    /// Sends the ICMP errors for a packet that was not forwarded.
    fn send_errors(&mut self, sender: &mut PortSender<'_>) {
        while let Some((port, error)) = self.element.poll_transmit(sender.now) {
            sender.send(port, error);
        }
    }
}

impl<E: Element + 'static> Node for ElementNode<E>
where
    E::Event: 'static,
{
    fn arrive(&mut self, port: Port, packet: Packet, sender: &mut PortSender<'_>) -> Instant {
        self.element.on_packet(port, packet, sender.now);
        self.drive(sender)
    }

    #[inline(always)]
    fn drive(&mut self, sender: &mut PortSender<'_>) -> Instant {
        let now = sender.now;
        let next = drive(&mut self.element, now, &mut Collect { sender, events: &mut self.events });
        next.map_or(Instant::MAX, |(at, _)| at)
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Packets on wires, in the order in which they were sent.
#[derive(Default)]
struct Wires {
    /// The packet before all others. Most nodes send one packet at a time, which then needs no queue.
    first: Option<OnWire>,
    rest: VecDeque<OnWire>,
    /// Number of packets sent by ports without a wire.
    unconnected: u64,
}

/// A packet and its destination.
type OnWire = (NodeId, Port, Packet);

impl Wires {
    #[inline]
    fn push(&mut self, packet: OnWire) {
        if self.first.is_none() && self.rest.is_empty() {
            self.first = Some(packet);
        } else {
            self.rest.push_back(packet);
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<OnWire> {
        if self.first.is_some() { self.first.take() } else { self.rest.pop_front() }
    }
}

/// Where packets sent by a node go.
struct PortSender<'a> {
    now: Instant,
    ends: &'a mut [PortState],
    wires: &'a mut Wires,
}

impl PortSender<'_> {
    #[inline(always)]
    fn send(&mut self, port: Port, packet: Packet) {
        match self.ends.get_mut(usize::from(port.0)) {
            Some(PortState { wire: Some((to, to_port)), out_bytes, .. }) => {
                *out_bytes += packet.len() as u64;
                self.wires.push((*to, *to_port, packet));
            }
            _ => self.wires.unconnected += 1,
        }
    }
}

struct Collect<'a, 'b, Event> {
    sender: &'a mut PortSender<'b>,
    events: &'a mut Option<VecDeque<(Instant, Event)>>,
}

impl<Event> Sink<Event> for Collect<'_, '_, Event> {
    #[inline(always)]
    fn transmit(&mut self, port: Port, packet: Packet) {
        self.sender.send(port, packet);
    }
    #[inline(always)]
    fn event(&mut self, event: Event) {
        let Some(events) = &mut self.events else { return };
        if events.len() >= MAX_EVENTS {
            events.pop_front();
        }
        events.push_back((self.sender.now, event));
    }
    #[inline(always)]
    fn wants_events(&self) -> bool {
        self.events.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_element::Reason;
    use anabranch_element::time::Duration;
    use anabranch_link::{Direction, DuplexLink, LinkChange, LinkCommand, LinkConfig, LinkEvent, Rate};

    /// Returns every packet by the port on which it arrived, and counts them.
    #[derive(Default)]
    struct Mirror(VecDeque<(Port, Packet)>, Vec<Instant>);

    impl Element for Mirror {
        type Command = Packet;
        type Event = ();
        fn on_packet(&mut self, port: Port, packet: Packet, now: Instant) {
            self.1.push(now);
            self.0.push_back((port, packet));
        }
        fn poll_transmit(&mut self, _: Instant) -> Option<(Port, Packet)> {
            self.0.pop_front()
        }
        fn on_command(&mut self, packet: Packet, _: Instant) {
            self.0.push_back((Port(0), packet));
        }
        fn poll_event(&mut self) -> Option<()> {
            None
        }
        fn on_timeout(&mut self, _: Instant) {}
        fn poll_timeout(&self) -> Option<(Instant, Reason)> {
            None
        }
    }

    fn link(ms: u64) -> DuplexLink {
        let config = LinkConfig {
            rate: Rate::Fixed(12_000_000),
            delay: Duration::from_millis(ms),
            ..Default::default()
        };
        DuplexLink::new(config.clone(), config, 1)
    }

    #[test]
    fn a_packet_returns_after_the_delay_of_the_link() {
        let mut net = Network::new();
        let (a, l, b) =
            (net.add("a", Mirror::default()), net.add("l", link(4)), net.add("b", Mirror::default()));
        net.connect((a, Port(0)), (l, DuplexLink::A));
        net.connect((l, DuplexLink::B), (b, Port(0)));
        net.command::<Mirror>(a, Packet::new(Instant::ZERO, vec![0; 1500])).unwrap();
        net.run_until(Instant::from_millis(22)).unwrap();
        let seen = |net: &mut Network, id| net.get_mut::<Mirror>(id).unwrap().1.clone();
        assert_eq!(seen(&mut net, b), [5, 15].map(Instant::from_millis));
        assert_eq!(seen(&mut net, a), [10, 20].map(Instant::from_millis));
        assert_eq!((net.now(), net.next_at()), (Instant::from_millis(22), Some(Instant::from_millis(25))));
        // Loss of carrier: an event, and the packet is lost.
        let down = LinkCommand { direction: Direction::Both, change: LinkChange::Up(false) };
        assert!(net.command::<DuplexLink>(l, down).unwrap());
        let events: Vec<_> = net.take_events::<DuplexLink>(l).collect();
        assert_eq!(events, [(Instant::from_millis(22), LinkEvent::Carrier { up: false })]);
        net.run_until(Instant::from_secs(1)).unwrap();
        assert_eq!((seen(&mut net, b).len(), net.packets_unconnected()), (2, 0));
        assert!(net.get_mut::<Mirror>(l).is_none(), "of another type");
    }

    #[test]
    fn a_loop_without_time_is_reported() {
        let mut net = Network::new();
        let (a, b) = (net.add("a", Mirror::default()), net.add("b", Mirror::default()));
        net.connect((a, Port(0)), (b, Port(0)));
        // Mirror stores every packet; a short chain is enough to trigger the guard.
        let stuck = net.inject((a, Port(0)), Packet::new(Instant::ZERO, vec![])).unwrap_err();
        assert!(stuck.to_string().contains("look for a loop of wires"), "{stuck}");
    }

    #[test]
    fn a_wire_can_be_moved() {
        let mut net = Network::new();
        let [a, b, c] = ["a", "b", "c"].map(|n| net.add(n, Mirror::default()));
        net.connect((a, Port(0)), (b, Port(3)));
        net.connect((a, Port(0)), (c, Port(7)));
        assert_eq!(net.wire((b, Port(3))), None);
        assert_eq!(net.wire((c, Port(7))), Some((a, Port(0))));
        net.disconnect((a, Port(0)));
        net.command::<Mirror>(a, Packet::new(Instant::ZERO, vec![])).unwrap();
        assert_eq!(net.packets_unconnected(), 1);
    }

    /// Receives packets, sends one on command, and reports both as events.
    #[derive(Default)]
    struct Gate(Option<Packet>, VecDeque<usize>);

    impl Element for Gate {
        type Command = Packet;
        type Event = usize;
        fn on_packet(&mut self, _: Port, packet: Packet, _: Instant) {
            self.1.push_back(packet.len());
        }
        fn poll_transmit(&mut self, _: Instant) -> Option<(Port, Packet)> {
            Some((Port(0), self.0.take()?))
        }
        fn on_command(&mut self, packet: Packet, _: Instant) {
            self.1.push_back(packet.len());
            self.0 = Some(packet);
        }
        fn poll_event(&mut self) -> Option<usize> {
            self.1.pop_front()
        }
        fn on_timeout(&mut self, _: Instant) {}
        fn poll_timeout(&self) -> Option<(Instant, Reason)> {
            None
        }
    }

    #[test]
    fn port_counters_survive_changes_of_the_wire() {
        let mut net = Network::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| net.add(name, Gate::default()));
        let send = |net: &mut Network, from, bytes| {
            net.command::<Gate>(from, Packet::new(Instant::ZERO, vec![0; bytes])).unwrap();
        };
        let counts = |net: &Network| {
            [a, b, c].map(|node| net.port_count((node, Port(0)))).map(|n| (n.out_bytes, n.in_bytes))
        };
        net.connect((a, Port(0)), (b, Port(0)));
        send(&mut net, a, 100);
        send(&mut net, b, 20);
        assert_eq!(counts(&net), [(100, 20), (20, 100), (0, 0)]);
        net.inject((b, Port(0)), Packet::new(Instant::ZERO, vec![0; 7])).unwrap();
        assert_eq!(counts(&net), [(100, 20), (20, 107), (0, 0)]);
        net.connect((c, Port(0)), (a, Port(0)));
        send(&mut net, a, 1);
        send(&mut net, b, 1);
        send(&mut net, c, 3);
        assert_eq!(counts(&net), [(101, 23), (20, 107), (3, 1)]);
        net.disconnect((a, Port(0)));
        net.connect((a, Port(0)), (b, Port(0)));
        send(&mut net, a, 1000);
        assert_eq!(counts(&net), [(1101, 23), (20, 1107), (3, 1)]);
    }

    #[test]
    fn events_have_the_time_of_the_event_or_of_the_request() {
        let mut net = Network::new();
        let (timed, untimed) =
            (net.add("timed", Gate::default()), net.add_untimed("untimed", Gate::default()));
        for ms in [1, 2] {
            net.run_until(Instant::from_millis(ms)).unwrap();
            for id in [timed, untimed] {
                net.inject((id, Port(0)), Packet::new(Instant::ZERO, vec![0; ms as usize])).unwrap();
            }
        }
        net.run_until(Instant::from_millis(9)).unwrap();
        let told = [timed, untimed].map(|id| net.take_events::<Gate>(id).collect::<Vec<_>>());
        let at = Instant::from_millis;
        assert_eq!(told, [[(at(1), 1), (at(2), 2)], [(at(9), 1), (at(9), 2)]]);
        assert_eq!(net.take_events::<Gate>(untimed).count(), 0);
    }
}
