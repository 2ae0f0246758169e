//! Common parts of connection tests.

pub mod relay;

use anabranch_taps::{Connection, Event, Preference, Properties, Security};
use std::time::Duration;

/// Runs the test; fails after a minute.
pub async fn within(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(60), test).await.expect("it hangs");
}

/// Properties that only datagram protocols satisfy.
pub fn datagrams() -> Properties {
    Properties {
        preserve_msg_boundaries: Preference::Require,
        reliability: Preference::NoPreference,
        preserve_order: Preference::NoPreference,
        congestion_control: Preference::NoPreference,
        ..Properties::default()
    }
}

/// Waits for an event.
pub async fn next_event(connection: &Connection, mut is: impl FnMut(&Event) -> bool) {
    while let Some(event) = connection.event().await {
        if is(&event) {
            return;
        }
    }
    panic!("no such event until the end");
}

/// A certificate for 127.0.0.1, and its key.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Identity {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        Self { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    pub fn server(&self) -> Security {
        Security::required()
            .alpn("test")
            .identity_pem(self.certificate.as_bytes(), self.key.as_bytes())
            .unwrap()
    }

    pub fn client(&self) -> Security {
        Security::required().alpn("test").trust_pem(self.certificate.as_bytes()).unwrap()
    }
}
