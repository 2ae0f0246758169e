//! Connection to an external broker, which is restored after failures.

use super::{MOST_BYTES, Message, OFFLINE, ONLINE, Topics};
use rumqttc::{AsyncClient, Event, EventLoop, LastWill, MqttOptions, Packet, QoS};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of messages that wait to be written. When the queue is full, the publisher waits and continues with
/// the newest report.
const WAITING: usize = 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Interval between connection attempts.
const AGAIN: Duration = Duration::from_secs(1);

/// A connection to a broker, or repeated attempts to connect.
pub(super) struct Client {
    client: AsyncClient,
    connected: Arc<AtomicBool>,
}

/// Starts to connect in the background.
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
    Client { client, connected }
}

impl Client {
    pub(super) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Queues a message, waiting for room. No message is dropped, because the removal of a path must reach
    /// the broker.
    pub(super) async fn publish(&self, Message { topic, payload, retain }: Message) {
        // An error means that the connection's task has ended, which happens only when the monitor ends.
        let _ = self.client.publish(topic, QoS::AtMostOnce, retain, payload).await;
    }
}

async fn run(
    mut events: EventLoop,
    client: AsyncClient,
    connected: Arc<AtomicBool>,
    status: String,
    at: String,
) {
    let (mut complained, mut unsaid) = (false, false);
    loop {
        // With many waiting messages there may be no room; then it is tried again later.
        unsaid = unsaid && client.try_publish(&status, QoS::AtMostOnce, true, ONLINE).is_err();
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => {
                tracing::info!("MQTT: connected to {at}");
                complained = false;
                connected.store(true, Ordering::Relaxed);
                unsaid = true;
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
