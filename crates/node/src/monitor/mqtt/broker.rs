//! A small MQTT 3.1.1 broker: QoS 0 to subscribers, retained messages, last wills.
//!
//! ```text
//!  monitor ─┐                                      ┌─▶ subscriber: filters, live messages
//!           ├─▶ retained (bounded) + live (bounded) ┤
//!  clients ─┘   QoS 0, or 1 with an answer          └─▶ …
//! ```
//!
//! It serves a collector next to the monitor, and monitors on other machines. It supports no users, no
//! encryption, no sessions that outlive a connection, and no QoS 2; installations that need these use another
//! broker (such as mosquitto) with `--mqtt`. All buffers are bounded: a subscriber that is too slow misses
//! messages, and one that does not read at all is disconnected.

use super::MOST_BYTES;
use bytes::{Bytes, BytesMut};
use rumqttc::mqttbytes::Error as Mqtt;
use rumqttc::{
    ConnAck, Connect, ConnectReturnCode, LastWill, Packet, Protocol, PubAck, Publish, QoS, SubAck, Subscribe,
    SubscribeReasonCode, UnsubAck, matches, valid_filter, valid_topic,
};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::{Instant, sleep_until, timeout};

const MAX_CLIENTS: usize = 64;
const MAX_FILTERS: usize = 64;
/// Maximum number of retained messages, and of bytes in them and their topics.
const MAX_RETAINED: usize = 4096;
const MAX_RETAINED_BYTES: usize = 16 << 20;
/// Number of live messages that a subscriber may lag behind.
const MAX_LAG: usize = 1024;
/// Time limit for a CONNECT, and for a write to a subscriber that reads nothing.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The broker; the module documentation describes it.
#[derive(Debug, Clone)]
pub(super) struct Broker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    retained: Mutex<Retained>,
    live: broadcast::Sender<Arc<Publish>>,
    clients: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Retained {
    by_topic: BTreeMap<String, Bytes>,
    bytes: usize,
}

impl Retained {
    /// Retains the last message of a topic; an empty payload removes it. If there is no room, the message is
    /// not retained.
    fn keep(&mut self, topic: &str, payload: &Bytes) {
        if let Some(before) = self.by_topic.remove(topic) {
            self.bytes -= topic.len() + before.len();
        }
        let more = topic.len() + payload.len();
        if !payload.is_empty()
            && self.by_topic.len() < MAX_RETAINED
            && self.bytes + more <= MAX_RETAINED_BYTES
        {
            self.by_topic.insert(topic.to_owned(), payload.clone());
            self.bytes += more;
        }
    }
}

/// Listens at `at` and serves clients in the background.
pub(super) async fn listen(at: SocketAddr) -> Result<Broker> {
    let listener = TcpListener::bind(at).await?;
    tracing::info!("MQTT: broker listening at {}", listener.local_addr()?);
    let broker = Broker::new();
    let serving = broker.clone();
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => serving.welcome(stream, peer),
                Err(error) => {
                    // Usually the process is out of file descriptors, and some become free again.
                    tracing::warn!("MQTT: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(broker)
}

impl Broker {
    fn new() -> Self {
        let (live, _) = broadcast::channel(MAX_LAG);
        let clients = Arc::new(Semaphore::new(MAX_CLIENTS));
        Self(Arc::new(Shared { retained: Mutex::default(), live, clients }))
    }

    /// Delivers a message to the subscribers of its topic and, if `retain`, keeps it for later ones.
    pub(super) fn publish(&self, topic: String, payload: Bytes, retain: bool) {
        if retain {
            self.0.retained.lock().unwrap_or_else(PoisonError::into_inner).keep(&topic, &payload);
        }
        // An error means that there is no subscriber.
        let _ = self.0.live.send(Arc::new(Publish::from_bytes(topic, QoS::AtMostOnce, payload)));
    }

    /// The topics of all retained messages.
    #[cfg(test)]
    pub(super) fn kept(&self) -> Vec<String> {
        let retained = self.0.retained.lock().unwrap_or_else(PoisonError::into_inner);
        retained.by_topic.keys().cloned().collect()
    }

    fn welcome(&self, stream: TcpStream, peer: SocketAddr) {
        let Ok(place) = Arc::clone(&self.0.clients).try_acquire_owned() else {
            tracing::warn!("MQTT: {peer} is one client too many: {MAX_CLIENTS} are connected");
            return;
        };
        let broker = self.clone();
        tokio::spawn(async move {
            let _place = place;
            match Client::greet(stream, broker.clone()).await {
                Ok(mut client) => {
                    let end = client.serve().await;
                    tracing::debug!("MQTT: {peer}: {end:?}");
                    if let (Err(_), Some(will)) = (end, client.will.take()) {
                        broker.publish(will.topic, will.message, will.retain);
                    }
                }
                Err(error) => tracing::debug!("MQTT: {peer}: {error}"),
            }
        });
    }
}

/// The connection of a client.
struct Client {
    broker: Broker,
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    input: BytesMut,
    live: broadcast::Receiver<Arc<Publish>>,
    filters: Vec<String>,
    will: Option<LastWill>,
    /// Time limit without packets: 1.5 keep-alive intervals (MQTT 3.1.1 §3.1.2.10).
    silence: Option<Duration>,
}

impl Client {
    /// Accepts a connection; its first packet must be a CONNECT.
    async fn greet(stream: TcpStream, broker: Broker) -> Result<Self> {
        let _ = stream.set_nodelay(true);
        let live = broker.0.live.subscribe();
        let (from, to) = stream.into_split();
        let (input, filters) = (BytesMut::new(), Vec::new());
        let mut client = Self { broker, from, to, input, live, filters, will: None, silence: None };
        let Packet::Connect(connect) = timeout(CLIENT_TIMEOUT, client.read()).await?? else {
            return Err(wrong("the first packet is no CONNECT"));
        };
        let Connect { protocol, keep_alive, last_will, .. } = connect;
        if protocol != Protocol::V4 {
            let code = ConnectReturnCode::RefusedProtocolVersion;
            client.answer(Packet::ConnAck(ConnAck::new(code, false))).await?;
            return Err(wrong("MQTT 3.1.1 is spoken here"));
        }
        client.will = last_will.filter(|will| is_topic(&will.topic));
        client.silence = (keep_alive > 0).then(|| Duration::from_millis(u64::from(keep_alive) * 1500));
        client.answer(Packet::ConnAck(ConnAck::new(ConnectReturnCode::Success, false))).await?;
        Ok(client)
    }

    /// Serves the connection until DISCONNECT (`Ok`) or an error.
    async fn serve(&mut self) -> Result<()> {
        let far = Duration::from_secs(86_400 * 365);
        let mut patience = Instant::now() + self.silence.unwrap_or(far);
        loop {
            tokio::select! {
                packet = read(&mut self.from, &mut self.input) => {
                    patience = Instant::now() + self.silence.unwrap_or(far);
                    match packet? {
                        Packet::Disconnect => return Ok(()),
                        packet => self.take(packet).await?,
                    }
                }
                message = self.live.recv() => match message {
                    Ok(message) => {
                        if self.filters.iter().any(|filter| matches(&message.topic, filter)) {
                            self.answer(Packet::Publish(Publish::clone(&message))).await?;
                        }
                    }
                    Err(RecvError::Lagged(missed)) => tracing::debug!("MQTT: a subscriber missed {missed}"),
                    Err(RecvError::Closed) => return Ok(()),
                },
                () = sleep_until(patience) => return Err(ErrorKind::TimedOut.into()),
            }
        }
    }

    async fn take(&mut self, packet: Packet) -> Result<()> {
        match packet {
            Packet::Subscribe(subscribe) => self.subscribe(subscribe).await,
            Packet::Unsubscribe(unsubscribe) => {
                self.filters.retain(|filter| !unsubscribe.topics.contains(filter));
                self.answer(Packet::UnsubAck(UnsubAck::new(unsubscribe.pkid))).await
            }
            Packet::Publish(Publish { topic, payload, retain, qos, pkid, .. }) => {
                if !is_topic(&topic) {
                    return Err(wrong("a topic with wildcards"));
                }
                if qos == QoS::ExactlyOnce {
                    return Err(wrong("quality of service 2 is not known here"));
                }
                self.broker.publish(topic, payload, retain);
                match qos {
                    QoS::AtLeastOnce => self.answer(Packet::PubAck(PubAck::new(pkid))).await,
                    _ => Ok(()),
                }
            }
            Packet::PingReq => self.answer(Packet::PingResp).await,
            _ => Err(wrong("a packet that a client does not send")),
        }
    }

    async fn subscribe(&mut self, Subscribe { pkid, filters }: Subscribe) -> Result<()> {
        let mut codes = Vec::new();
        let mut new = Vec::new();
        for filter in filters {
            let known = self.filters.contains(&filter.path);
            if !valid_filter(&filter.path) || (!known && self.filters.len() >= MAX_FILTERS) {
                codes.push(SubscribeReasonCode::Failure);
                continue;
            }
            codes.push(SubscribeReasonCode::Success(QoS::AtMostOnce));
            if !known {
                self.filters.push(filter.path.clone());
            }
            new.push(filter.path);
        }
        self.answer(Packet::SubAck(SubAck::new(pkid, codes))).await?;
        let retained: Vec<(String, Bytes)> = {
            let retained = self.broker.0.retained.lock().unwrap_or_else(PoisonError::into_inner);
            let all = retained.by_topic.iter();
            let wanted = all.filter(|(topic, _)| new.iter().any(|filter| matches(topic, filter)));
            wanted.map(|(topic, payload)| (topic.clone(), payload.clone())).collect()
        };
        for (topic, payload) in retained {
            let message = Publish { retain: true, ..Publish::from_bytes(topic, QoS::AtMostOnce, payload) };
            self.answer(Packet::Publish(message)).await?;
        }
        Ok(())
    }

    async fn read(&mut self) -> Result<Packet> {
        read(&mut self.from, &mut self.input).await
    }

    async fn answer(&mut self, packet: Packet) -> Result<()> {
        let mut out = BytesMut::new();
        packet.write(&mut out, usize::MAX).map_err(|error| wrong(&error.to_string()))?;
        timeout(CLIENT_TIMEOUT, self.to.write_all(&out)).await?
    }
}

/// Reads the next packet. Cancel-safe: bytes already received stay in `input`.
async fn read(from: &mut OwnedReadHalf, input: &mut BytesMut) -> Result<Packet> {
    loop {
        match Packet::read(input, MOST_BYTES) {
            Ok(packet) => return Ok(packet),
            Err(Mqtt::InsufficientBytes(_)) => {}
            Err(error) => return Err(wrong(&error.to_string())),
        }
        if from.read_buf(input).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Whether messages may be published to this topic: no wildcards, and no leading `$`, which is reserved for
/// brokers.
fn is_topic(topic: &str) -> bool {
    !topic.is_empty() && !topic.starts_with('$') && valid_topic(topic)
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retained_messages_are_bounded() {
        let mut retained = Retained::default();
        for i in 0..MAX_RETAINED + 5 {
            retained.keep(&format!("t/{i:05}"), &Bytes::from_static(b"x"));
        }
        assert_eq!((retained.by_topic.len(), retained.bytes), (MAX_RETAINED, 8 * MAX_RETAINED));
        retained.keep("t/00000", &Bytes::new());
        assert_eq!(retained.by_topic.len(), MAX_RETAINED - 1);
        let large = Bytes::from(vec![0; MOST_BYTES]);
        for i in 0..MAX_RETAINED {
            retained.keep(&format!("t/{i:05}"), &large);
        }
        assert!(retained.bytes <= MAX_RETAINED_BYTES, "{}", retained.bytes);
        for i in 0..MAX_RETAINED + 5 {
            retained.keep(&format!("t/{i:05}"), &Bytes::new());
        }
        assert_eq!((retained.by_topic.len(), retained.bytes), (0, 0));
    }

    /// Whatever a client sends, it is answered or disconnected, and the other clients are not affected.
    #[tokio::test]
    async fn malformed_input_affects_no_other_client() {
        let broker = Broker::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let serving = broker.clone();
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                serving.welcome(stream, peer);
            }
        });
        let connect = |id: &str| {
            let mut out = BytesMut::new();
            Packet::Connect(Connect::new(id)).write(&mut out, usize::MAX).unwrap();
            out
        };
        broker.publish("a/b".into(), "kept".into(), true);
        for nonsense in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x10, 0xff, 0xff, 0xff, 0xff], &[0xc0, 0], &[0x30, 2, 0, 9]]
        {
            for first in [BytesMut::new(), connect("n")] {
                let mut stream = TcpStream::connect(at).await.unwrap();
                stream.write_all(&[&first[..], nonsense].concat()).await.unwrap();
                stream.shutdown().await.unwrap();
                let mut rest = Vec::new();
                timeout(CLIENT_TIMEOUT, stream.read_to_end(&mut rest)).await.unwrap().ok();
            }
        }
        let (mut from, mut to) = TcpStream::connect(at).await.unwrap().into_split();
        let mut out = connect("s");
        Packet::Subscribe(Subscribe {
            pkid: 7,
            filters: vec![rumqttc::SubscribeFilter::new("a/#".into(), QoS::AtLeastOnce)],
        })
        .write(&mut out, usize::MAX)
        .unwrap();
        to.write_all(&out).await.unwrap();
        let mut input = BytesMut::new();
        let mut next = async || timeout(CLIENT_TIMEOUT, read(&mut from, &mut input)).await.unwrap().unwrap();
        assert!(matches!(next().await, Packet::ConnAck(_)));
        assert!(matches!(next().await, Packet::SubAck(_)));
        let Packet::Publish(kept) = next().await else { panic!() };
        assert_eq!((kept.topic.as_str(), &kept.payload[..], kept.retain), ("a/b", &b"kept"[..], true));
        broker.publish("b".into(), "not wanted".into(), false);
        broker.publish("a".into(), "live".into(), false);
        let Packet::Publish(live) = next().await else { panic!() };
        assert_eq!((live.topic.as_str(), &live.payload[..], live.retain), ("a", &b"live"[..], false));
    }
}
