//! A QUIC connection (quinn) with one stream that carries verified data in one direction.

use super::{Delivered, LOOK, Quic, TaskTimes, now_ns, pattern, sleep_until, write_report};
use anyhow::{Context, Result, bail};
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The name in the certificate.
const NAME: &str = "server.test";
/// Flow-control window, above the bandwidth-delay product of all scenarios, so that congestion control is the limit.
const WINDOW_BYTES: u32 = 64 << 20;
/// Socket buffer, as far as the system allows.
const SOCKET_BYTES: usize = 4 << 20;
/// Reads within this time are merged into one entry of the report.
const SAME_NS: u64 = 1_000_000;

/// Creates a certificate and its key for one flow.
///
/// # Errors
/// The files cannot be written.
pub fn identity(certificate: &Path, key: &Path) -> Result<()> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).context("a certificate")?;
    std::fs::write(certificate, made.cert.der()).with_context(|| certificate.display().to_string())?;
    std::fs::write(key, made.signing_key.serialize_der()).with_context(|| key.display().to_string())
}

pub fn listen(task: &Quic) -> Result<()> {
    let key = task.key.as_ref().context("a server has a key")?;
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    let certificate = CertificateDer::from(read(&task.certificate)?);
    let key = PrivateKeyDer::try_from(read(key)?).map_err(anyhow::Error::msg)?;
    let mut config = ServerConfig::with_single_cert(vec![certificate], key).context("the certificate")?;
    config.transport_config(transport(task)?);
    let socket = socket(task, task.stream.local.context("an address to listen at")?)?;
    let when = task.stream.when.begin()?;
    runtime()?.block_on(async {
        let endpoint = endpoint(Some(config), socket)?;
        let accepted = async { Some(endpoint.accept().await?.await) };
        let connection = before(when.until_ns, accepted).await.flatten().and_then(Result::ok);
        run(task, when, connection).await?;
        before(when.until_ns, endpoint.wait_idle()).await;
        Ok(())
    })
}

pub fn connect(task: &Quic) -> Result<()> {
    let to = task.stream.to.context("a server")?;
    let mut roots = RootCertStore::empty();
    let certificate = std::fs::read(&task.certificate).context("the certificate")?;
    roots.add(CertificateDer::from(certificate)).context("the certificate")?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots)).context("the certificate")?;
    config.transport_config(transport(task)?);
    let any_port = task.stream.local.map(|local| SocketAddr::new(local.ip(), 0)).context("an address")?;
    let socket = socket(task, any_port)?;
    let when = task.stream.when.begin()?;
    sleep_until(when.start_ns);
    runtime()?.block_on(async {
        let endpoint = endpoint(None, socket)?;
        let connecting = endpoint.connect_with(config, to, NAME).context("connect")?;
        let connection = before(when.stop_ns, connecting).await.and_then(Result::ok);
        run(task, when, connection).await?;
        before(when.until_ns, endpoint.wait_idle()).await;
        Ok(())
    })
}

async fn run(task: &Quic, when: TaskTimes, connection: Option<Connection>) -> Result<()> {
    match connection {
        Some(connection) if task.stream.sends => send(task, when, &connection).await,
        Some(connection) => receive(task, when, &connection).await,
        None if task.stream.sends => Ok(()),
        // No connection: nothing was delivered, and nothing is wrong.
        None => write_report(&task.stream.report, &Delivered { intact: true, ..Delivered::default() }),
    }
}

async fn send(task: &Quic, when: TaskTimes, connection: &Connection) -> Result<()> {
    let Some(Ok(mut stream)) = before(when.stop_ns, connection.open_uni()).await else { return Ok(()) };
    let total = task.stream.bytes.unwrap_or(u64::MAX);
    let mut written = 0u64;
    let mut buffer = vec![0; 64 << 10];
    while written < total && now_ns() < when.stop_ns {
        let n = usize::try_from(total - written).unwrap_or(usize::MAX).min(buffer.len());
        pattern::fill(written, &mut buffer[..n]);
        match before(when.stop_ns, stream.write(&buffer[..n])).await {
            Some(Ok(n)) => written += n as u64,
            // The time has passed, or the peer has ended; the data it received is in its report.
            None => break,
            Some(Err(_)) => return Ok(()),
        }
    }
    if stream.finish().is_ok() {
        before(when.until_ns, stream.stopped()).await;
    }
    connection.close(VarInt::from_u32(0), b"done");
    Ok(())
}

async fn receive(task: &Quic, when: TaskTimes, connection: &Connection) -> Result<()> {
    let mut report = Delivered { deliveries: Vec::new(), intact: true };
    if let Some(Ok(mut stream)) = before(when.until_ns, connection.accept_uni()).await {
        let mut total = 0u64;
        while let Some(Ok(Some(chunk))) = before(when.until_ns, stream.read_chunk(usize::MAX, true)).await {
            let (now, n) = (now_ns(), chunk.bytes.len() as u64);
            report.intact &= pattern::matches(total, &chunk.bytes);
            total += n;
            match report.deliveries.last_mut() {
                Some((at, bytes)) if now.saturating_sub(*at) < SAME_NS => *bytes += n,
                _ => report.deliveries.push((now, n)),
            }
        }
    }
    connection.close(VarInt::from_u32(0), b"done");
    write_report(&task.stream.report, &report)
}

/// The result of `wanted`, if it is ready in time.
async fn before<T>(until_ns: u64, wanted: impl Future<Output = T>) -> Option<T> {
    let left = Duration::from_nanos(until_ns.saturating_sub(now_ns())).max(LOOK);
    tokio::time::timeout(left, wanted).await.ok()
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime")
}

fn socket(task: &Quic, at: SocketAddr) -> Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None).context("a UDP socket")?;
    task.stream.setup.apply(&socket)?;
    socket.set_recv_buffer_size(SOCKET_BYTES).context("SO_RCVBUF")?;
    socket.set_send_buffer_size(SOCKET_BYTES).context("SO_SNDBUF")?;
    socket.bind(&at.into()).with_context(|| format!("bind to {at}"))?;
    Ok(socket.into())
}

fn endpoint(server: Option<ServerConfig>, socket: std::net::UdpSocket) -> Result<Endpoint> {
    Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime)).context("QUIC")
}

fn transport(task: &Quic) -> Result<Arc<TransportConfig>> {
    let mut config = TransportConfig::default();
    let window = VarInt::from_u32(WINDOW_BYTES);
    config.stream_receive_window(window).receive_window(window).send_window(WINDOW_BYTES.into());
    let control: Arc<dyn ControllerFactory + Send + Sync> = match task.congestion_control.as_str() {
        "cubic" => Arc::new(CubicConfig::default()),
        "bbr" => Arc::new(BbrConfig::default()),
        "reno" => Arc::new(NewRenoConfig::default()),
        other => bail!("quinn has no congestion control `{other}`"),
    };
    config.congestion_controller_factory(control);
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::super::{Args, Setup, Stream, Task, run};
    use super::*;

    #[test]
    fn every_controller_carries_every_byte() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("certificate"), dir.path().join("key"));
        identity(&certificate, &key).unwrap();
        for (control, server_sends) in [("cubic", true), ("bbr", false), ("reno", true)] {
            let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let start_ns = now_ns() + 50_000_000;
            // The test ends with its bytes; the rest is a reserve for slow machines.
            let when = TaskTimes {
                start_ns,
                stop_ns: start_ns + 120_000_000_000,
                until_ns: start_ns + 180_000_000_000,
            };
            let one = |sends, local, to| Quic {
                stream: Stream {
                    local,
                    to,
                    when: when.into(),
                    sends,
                    bytes: Some(3_000_000),
                    limit_bps: None,
                    mptcp: false,
                    setup: Setup::default(),
                    report: dir.path().join(control),
                },
                congestion_control: control.into(),
                certificate: certificate.clone(),
                key: to.is_none().then(|| key.clone()),
            };
            let listen = Task::QuicListen(one(server_sends, Some(server), None));
            let client = Some("127.0.0.1:0".parse().unwrap());
            let connect = Task::QuicConnect(one(!server_sends, client, Some(server)));
            std::thread::scope(|scope| {
                for task in [listen, connect] {
                    let task = serde_json::to_string(&task).unwrap();
                    scope.spawn(move || run(&Args { task }).unwrap());
                }
            });
            let text = std::fs::read_to_string(dir.path().join(control)).unwrap();
            let report: Delivered = serde_json::from_str(&text).unwrap();
            let bytes: u64 = report.deliveries.iter().map(|(_, n)| n).sum();
            assert!(report.intact && bytes == 3_000_000, "{control}: {bytes}");
        }
    }
}
