//! Cost of the secure tunnel's cryptography: bytes per second of seal and open, time of a handshake.

use anabranch_atsss::crypto::{Initiator, PrivateKey, ReplayWindow, Responder, SessionKeys, Suite, Verdict};
use anabranch_element::time::Instant;
use anabranch_wire::handshake::{Hello, Welcome};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};

fn hello() -> Hello {
    Hello { path: 0, accesses: Vec::new(), mtu: 1400, resume: None, plain: 0, features: 0 }
}

fn welcome() -> Welcome {
    Welcome {
        ipv4: Some((Ipv4Addr::new(10, 45, 0, 2), 24)),
        ipv6: None,
        inner_mtu: 1400,
        reorder_available: 0,
        instance: 0,
        plain: 0,
        features: 0,
    }
}

struct Ends {
    ue: PrivateKey,
    upf: Responder,
    rng: ChaCha20Rng,
    from: SocketAddr,
    suite: Suite,
}

impl Ends {
    fn new(suite: Suite) -> Self {
        let mut rng = ChaCha20Rng::from_seed([1; 32]);
        let ue = PrivateKey::generate(&mut rng);
        let upf = Responder::new(PrivateKey::generate(&mut rng), [2; 32]);
        Self { ue, upf, rng, from: SocketAddr::from(([192, 0, 2, 1], 1)), suite }
    }

    fn start(&mut self) -> (Initiator, Vec<u8>) {
        let upf = self.upf.public();
        Initiator::start(&self.ue, &upf, self.suite, 1, 1, &hello(), None, &mut self.rng).expect("start")
    }

    fn answer(&mut self, init: &[u8]) -> (SessionKeys, Vec<u8>) {
        match self.upf.inspect(init, self.from, Instant::ZERO, false) {
            Verdict::Passed(init) => init.read().expect("read").respond(2, &welcome()).expect("respond"),
            other => panic!("{other:?}"),
        }
    }

    fn keys(&mut self) -> (SessionKeys, SessionKeys) {
        let (mut initiator, init) = self.start();
        let (upf, response) = self.answer(&init);
        (initiator.finish(&response).expect("finish").keys, upf)
    }
}

fn packets(c: &mut Criterion) {
    for suite in [Suite::Aes256Gcm, Suite::ChaCha20Poly1305] {
        let (mut ue, mut upf) = Ends::new(suite).keys();
        for len in [64usize, 1400] {
            let mut group = c.benchmark_group(format!("{suite:?}/{len}"));
            group.throughput(Throughput::Bytes(len as u64));
            let mut pn = 0;
            let mut buf = vec![7u8; len + 16];
            group.bench_function("seal", |b| {
                b.iter(|| {
                    pn += 1;
                    ue.seal(1, pn, &[0; 16], black_box(&mut buf)).expect("seal");
                });
            });
            let mut packet = vec![7u8; len + 16];
            ue.seal(0, 1, &[0; 16], &mut packet).expect("seal");
            group.bench_function("open", |b| {
                // Opening decrypts in place, so each round copies the packet first: 1400 bytes, some 20 ns.
                b.iter(|| {
                    buf.copy_from_slice(&packet);
                    black_box(upf.open(0, 1, &[0; 16], &mut buf).expect("open").len())
                });
            });
        }
        c.bench_function(&format!("{suite:?}/cool down and expand again"), |b| {
            let mut buf = [0; 17];
            b.iter(|| {
                ue.cool_down();
                ue.seal(1, 1, &[], black_box(&mut buf)).expect("seal");
            });
        });
    }
}

fn replay(c: &mut Criterion) {
    c.bench_function("replay window, in order", |b| {
        let mut window = ReplayWindow::default();
        let mut pn = 0;
        b.iter(|| {
            pn += 1;
            window.check(black_box(pn)).expect("new");
            window.commit(pn)
        });
    });
}

fn handshake(c: &mut Criterion) {
    let mut ends = Ends::new(Suite::Aes256Gcm);
    c.bench_function("handshake: UE start", |b| b.iter(|| ends.start()));
    let (_, init) = ends.start();
    c.bench_function("handshake: UPF inspect and respond", |b| b.iter(|| ends.answer(&init)));
    let mut forged = init.clone();
    forged[20] ^= 1;
    c.bench_function("handshake: UPF refuses at mac1", |b| {
        b.iter(|| ends.upf.inspect(&forged, ends.from, Instant::ZERO, false));
    });
    c.bench_function("handshake: UPF gives a cookie", |b| {
        b.iter(|| ends.upf.inspect(&init, ends.from, Instant::ZERO, true));
    });
    c.bench_function("handshake: UE finish", |b| {
        b.iter_batched(
            || {
                ends.rng = ChaCha20Rng::from_seed([3; 32]);
                let (initiator, init) = ends.start();
                let (_, response) = ends.answer(&init);
                (initiator, response)
            },
            |(mut initiator, response)| initiator.finish(&response).expect("finish"),
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, packets, replay, handshake);
criterion_main!(benches);
