//! A UPF that is configured by name, and a name server whose answers change, are wrong, or are missing.

use super::{Day, SERVER};
use crate::Options;
use crate::live::{Flow, Live};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The name server does not answer.
const SILENT: u32 = 0;
/// It answers that the name does not exist.
const NO_NAME: u32 = 1;
/// Its answers are not DNS messages.
const NOISE: u32 = 2;

/// Answers every query with one address, which can be changed. DNS according to RFC 1035 §4.
fn answer(socket: &UdpSocket, says: &AtomicU32) {
    let mut buffer = [0; 512];
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        let mut message = buffer[..len].to_vec();
        // The question ends four bytes after the name.
        let Some(end) = message.iter().skip(12).position(|byte| *byte == 0).map(|at| 12 + at + 5) else {
            continue;
        };
        let Some(kind) = message.get(end - 3) else { continue };
        let is_a = *kind == 1;
        message.truncate(end);
        message[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0]);
        match says.load(Relaxed) {
            SILENT => continue,
            NO_NAME => message[3] = 0x83,
            NOISE => message = vec![0xff; 40],
            address if is_a => {
                message[7] = 1;
                message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
                message.extend(address.to_be_bytes());
            }
            _ => {}
        }
        let _ = socket.send_to(&message, from);
    }
}

/// The address of the UPF changes; while the name server is wrong or does not answer, the other access
/// carries all traffic.
#[test]
fn flows_survive_answers_of_the_name_server_that_change() {
    let Some(mut day) = Day::new(&Options::default()) else { return };
    let text = std::fs::read_to_string(day.world.file("ue.toml")).unwrap();
    std::fs::write(day.world.file("ue.toml"), text.replace("10.1.0.1:4500", "upf.example:4500")).unwrap();
    std::fs::write(day.world.file("resolv.conf"), "nameserver fd02::1\noptions timeout:1 attempts:1\n")
        .unwrap();
    let socket = day.world.upf.run(|| UdpSocket::bind("[fd02::1]:53").unwrap());
    let says = Arc::new(AtomicU32::new(u32::from(Ipv4Addr::new(10, 1, 0, 1))));
    let heard = says.clone();
    std::thread::spawn(move || answer(&socket, &heard));
    day.start("upf");
    let bind =
        format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", day.world.file("resolv.conf").display());
    let own = ["unshare", "--mount", "sh", "-ec", &bind, "sh"].map(str::to_owned);
    *day.world.environment.borrow_mut() = own.into();
    day.start("ue");

    let traffic = Live::start(&day.world.ue, SERVER[0].parse().unwrap());
    let up = |day: &Day| day.world.paths_up("ue");
    day.world.upf.sh(
        "ip addr del 10.1.0.1/24 dev 5g0; ip addr add 10.1.0.9/24 dev 5g0; ip addr add 10.1.0.7/24 dev 5g0",
    );
    day.world.until("5G is lost", || up(&day) == 1);
    says.store(Ipv4Addr::new(10, 1, 0, 9).into(), Relaxed);
    day.world.until("5G is at its new address", || up(&day) == 2);
    // Invalid answers change nothing.
    for none in [SILENT, NO_NAME, NOISE] {
        says.store(none, Relaxed);
        std::thread::sleep(std::time::Duration::from_secs(6));
        assert_eq!(up(&day), 2, "{none}: {}", day.world.logs());
    }
    // An address where nobody answers; then another address of the UPF.
    says.store(Ipv4Addr::new(10, 1, 0, 77).into(), Relaxed);
    day.world.until("5G is lost", || up(&day) == 1);
    says.store(Ipv4Addr::new(10, 1, 0, 7).into(), Relaxed);
    day.world.until("5G is back", || up(&day) == 2);
    let name = "UPF moves; name server silent, wrong, lying, then right";
    Flow::judge(&traffic.end(), name, [2_000.0, 1_500.0], || day.world.logs());
    day.end();
}
