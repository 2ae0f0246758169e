//! A full disk, a disk with room again, and a database file that is replaced.

use super::*;
use crate::testing::sh;
use nix::sched::{CloneFlags, unshare};
use std::collections::BTreeSet;

/// Runs `body` with a directory on a file system of `kib` KiB; does nothing where mounts are not permitted.
fn with_disk(kib: u32, body: impl AsyncFnOnce(tempfile::TempDir) + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
                assert!(std::env::var_os("CI").is_none(), "CI must be able to mount: {error}");
                eprintln!("skipped: needs root to mount a small disk ({error})");
                return;
            }
            let disk = tempfile::tempdir().unwrap();
            let at = disk.path().display().to_string();
            sh(&format!("mount --make-rprivate /; mount -t tmpfs -o size={kib}k none {at}"));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(body(disk));
            drop(runtime);
            sh(&format!("umount -l {at}"));
        });
    });
}

#[test]
fn writes_continue_when_a_full_disk_has_room_again() {
    for kib in [200, 333, 600] {
        with_disk(kib, async |disk| {
            let at = disk.path().to_owned();
            let more = "[limits]\nue_burst = 10000\n";
            let world = World::at(disk, more).await;
            let body = |name: &str| json!({"name": name, "accesses": ["cell-2"], "serviceProfile": {}});
            let mut made = BTreeSet::new();
            let mut full = 0;
            // Until several in a row are refused, because internal steps of slices may still find room.
            for i in 0..2000 {
                let (status, said) = world.call("POST", "/v1/slices", Some(body(&format!("s{i}")))).await;
                match status {
                    201 => drop(made.insert(said["id"].as_str().unwrap().to_owned())),
                    503 => {
                        full += 1;
                        let detail = said["detail"].as_str().unwrap();
                        assert!(detail.contains("nothing has changed"), "{said}");
                    }
                    409 => break,
                    _ => panic!("{status} {said}"),
                }
                if full >= 10 {
                    break;
                }
            }
            assert!(full >= 10, "{kib} KiB were enough for {}", made.len());
            let end = Instant::now() + Duration::from_secs(30);
            loop {
                let (status, health) = world.call("GET", "/healthz", None).await;
                if status == 503 {
                    assert!(health["detail"].as_str().unwrap().contains("full"), "{health}");
                    break;
                }
                assert!(Instant::now() < end, "{health}");
                let (status, said) = world.call("POST", "/v1/slices", Some(body("more"))).await;
                assert!(status == 503 && said["detail"].as_str().unwrap().contains("full"), "{said}");
            }
            // Reads return what was answered.
            let there = |world: &World| {
                let engine = world._running.shared.engine.clone();
                engine.read(|m| m.slices().keys().cloned().collect::<BTreeSet<_>>())
            };
            assert_eq!(there(&world), made);
            sh(&format!("mount -o remount,size=20m {}", at.display()));
            let end = Instant::now() + Duration::from_secs(30);
            loop {
                let (status, said) = world.call("POST", "/v1/slices", Some(body("after"))).await;
                if status == 201 {
                    made.insert(said["id"].as_str().unwrap().to_owned());
                    break;
                }
                assert!(Instant::now() < end, "room again, and still {said}");
            }
            for id in made.clone() {
                world.until(&id, "Running").await;
            }
            let again = started(&config(&at, more)).await;
            assert_eq!(
                again.shared.engine.read(|m| m.slices().keys().cloned().collect::<BTreeSet<_>>()),
                made
            );
        });
    }
}

/// Writes to an open file that was removed, replaced or moved away would be lost.
#[tokio::test]
async fn no_success_is_reported_for_writes_to_a_lost_file() {
    type Change = fn(&std::path::Path) -> std::io::Result<()>;
    let cases: [(&str, Change); 4] = [
        ("removed", |file| std::fs::remove_file(file)),
        ("moved away", |file| std::fs::rename(file, file.with_extension("moved"))),
        ("replaced", |file| {
            std::fs::copy(file, file.with_extension("copy"))?;
            std::fs::rename(file.with_extension("copy"), file)
        }),
        ("its folder moved away", |file| {
            std::fs::rename(file.parent().unwrap(), file.parent().unwrap().with_extension("moved"))
        }),
    ];
    for (what, change) in cases {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let mut config = config(folder.path(), "");
        let file = inner.join("slices.db");
        config.manager.database = format!("sqlite:{}", file.display());
        let world = World::of(folder, &config).await;
        let body = |name: &str| Some(json!({"name": name, "accesses": ["cell-2"], "serviceProfile": {}}));
        let (status, made) = world.call("POST", "/v1/slices", body("before")).await;
        assert_eq!(status, 201, "{made}");
        world.until(made["id"].as_str().unwrap(), "Running").await;
        change(&file).unwrap();
        let (status, said) = world.call("POST", "/v1/slices", body("after")).await;
        assert_eq!(status, 503, "{what}: {said}");
        assert!(said["detail"].as_str().unwrap().contains("nothing has changed"), "{what}: {said}");
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let (status, health) = world.call("GET", "/healthz", None).await;
            if status == 503 {
                let detail = health["detail"].as_str().unwrap();
                assert!(
                    detail.contains("slices.db") && detail.contains("start it again"),
                    "{what}: {health}"
                );
                break;
            }
            assert!(Instant::now() < end, "{what}: {health}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // Moved back, it is the file that was opened.
        if what == "moved away" {
            std::fs::rename(file.with_extension("moved"), &file).unwrap();
            let (status, said) = world.call("POST", "/v1/slices", body("back")).await;
            assert_eq!(status, 201, "{said}");
            let again = started(&config).await;
            assert_eq!(again.shared.engine.read(|m| m.slices().len()), 2);
        }
    }
}
