//! To somebody's broker: connects, connects again, and drops what it has no room for.

use super::{MOST_BYTES, Message, OFFLINE, ONLINE, Topics};
use rumqttc::{AsyncClient, Event, EventLoop, LastWill, MqttOptions, Packet, QoS};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Messages that wait to be written; a report of 64 paths and 256 flows has 321.
const WAITING: usize = 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// From one try to the next.
const AGAIN: Duration = Duration::from_secs(1);

/// A connection to a broker, or the wish for one.
pub(super) struct Client {
    client: AsyncClient,
    connected: Arc<AtomicBool>,
    /// Messages there was no room for since it was last said.
    dropped: AtomicU64,
}

/// Starts to connect, in the background.
pub(super) fn connect(
    name: &str,
    (host, port): (&str, u16),
    login: Option<(String, String)>,
    topics: &Topics,
) -> Client {
    let id = format!("anabranch-int-{name}-{}", std::process::id());
    let mut options = MqttOptions::new(id, host, port);
    options.set_keep_alive(KEEP_ALIVE);
    options.set_max_packet_size(MOST_BYTES, MOST_BYTES);
    options.set_last_will(LastWill::new(topics.status(), OFFLINE, QoS::AtLeastOnce, true));
    if let Some((user, password)) = login {
        options.set_credentials(user, password);
    }
    let (client, events) = AsyncClient::new(options, WAITING);
    let connected = Arc::new(AtomicBool::new(false));
    tokio::spawn(run(
        events,
        client.clone(),
        Arc::clone(&connected),
        topics.status(),
        format!("{host}:{port}"),
    ));
    Client { client, connected, dropped: AtomicU64::new(0) }
}

impl Client {
    pub(super) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    pub(super) fn publish(&self, Message { topic, payload, retain }: Message) {
        if self.client.try_publish(topic, QoS::AtMostOnce, retain, payload).is_ok() {
            return;
        }
        // Said at powers of two, so that a broker that is always slow is heard of, and not every second.
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        if dropped.is_power_of_two() {
            tracing::warn!("MQTT: the broker is slow; {dropped} messages were dropped");
        }
    }
}

async fn run(
    mut events: EventLoop,
    client: AsyncClient,
    connected: Arc<AtomicBool>,
    status: String,
    at: String,
) {
    let mut complained = false;
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => {
                tracing::info!("MQTT: connected to {at}");
                complained = false;
                connected.store(true, Ordering::Relaxed);
                // The first message after a connection finds room.
                let _ = client.try_publish(&status, QoS::AtMostOnce, true, ONLINE);
            }
            Ok(_) => {}
            Err(error) => {
                connected.store(false, Ordering::Relaxed);
                if !complained {
                    tracing::warn!("MQTT: {at}: {error}; trying again every second");
                    complained = true;
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
