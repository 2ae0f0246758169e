//! Faults of the slice manager: its database fails or does not respond, during a COMMIT and otherwise; the
//! manager is stopped, or has no file descriptors. No answered change is lost, and the manager recovers by
//! itself.

use super::postgres::Postgres;
use super::shim::{give_descriptors, take_descriptors};
use super::{Manager, slice};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn names(slices: &[Value]) -> BTreeSet<String> {
    slices.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until a slice can be created without a restart; returns the time.
async fn works_again(manager: &Manager, name: &str) -> Duration {
    let start = Instant::now();
    loop {
        match manager.call("POST", "/v1/slices", slice(name, 1000)).await {
            Some((201, _)) => return start.elapsed(),
            other => assert!(start.elapsed() < Duration::from_secs(40), "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The server dies during a commit: once before anything is stored, once after everything is stored but not
/// confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_outcome_of_a_commit_interrupted_by_a_crash_is_reported_correctly() {
    for stored in [false, true] {
        let Some(mut postgres) = Postgres::start().await else { return };
        let folder = tempfile::tempdir().unwrap();
        let manager = Manager::start(folder.path(), "one", &postgres.url()).await;
        manager.call("POST", "/v1/slices", slice("before", 1000)).await.unwrap();
        manager.settled().await;
        if stored {
            // The COMMIT is in the log and waits for a standby that does not exist.
            postgres.commits_wait().await;
        } else {
            // A COMMIT first executes deferred triggers, which takes a while here.
            postgres.sql(&[
                "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS \
                 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END'",
                "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON anabranch_record DEFERRABLE INITIALLY DEFERRED \
                 FOR EACH ROW WHEN (NEW.body LIKE '%doomed%') EXECUTE FUNCTION slow()",
            ]);
        }
        let manager = Arc::new(manager);
        let asks = manager.clone();
        let doomed =
            tokio::spawn(async move { asks.call("POST", "/v1/slices", slice("doomed", 1000)).await });
        let end = Instant::now() + Duration::from_secs(20);
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query = 'COMMIT'";
        while postgres.sql(&[busy]).trim() == "0" {
            assert!(Instant::now() < end && !doomed.is_finished(), "it does not commit: {doomed:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        postgres.kill();
        // Reads do not need the database.
        assert!(names(&manager.slices().await).contains("before"));
        postgres.restart().await;
        let outage = works_again(&manager, "after").await;
        let answer = doomed.await.unwrap();
        println!(
            "PostgreSQL killed during COMMIT, stored: {stored}; works again after {outage:?}; {answer:?}"
        );
        let there = names(&manager.slices().await);
        match answer {
            Some((201, _)) => assert!(stored),
            Some((503, said)) if said["detail"].as_str().unwrap().contains("not known") => {}
            Some((503, said)) => assert!(!stored, "{said}"),
            other => panic!("{other:?}"),
        }
        let mut expected: BTreeSet<String> = ["before", "after"].map(str::to_owned).into();
        expected.extend(stored.then(|| "doomed".to_owned()));
        assert_eq!(there, expected);
        // Therefore another instance has it.
        manager.settled().await;
        let again = Manager::start(folder.path(), "two", &postgres.url()).await;
        assert_eq!(names(&again.slices().await), expected);
    }
}

/// The server stops answering, as behind a network that is cut. Reads are answered, changes are refused in
/// time, and everything works once the server answers again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unresponsive_database_blocks_no_request_for_ever() {
    let Some(postgres) = Postgres::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::start(folder.path(), "one", &postgres.url()).await;
    manager.call("POST", "/v1/slices", slice("before", 1000)).await.unwrap();
    manager.settled().await;
    postgres.signal(Signal::SIGSTOP);
    let start = Instant::now();
    let answer = manager.call("POST", "/v1/slices", slice("meanwhile", 1000)).await;
    println!("PostgreSQL stopped: {answer:?} after {:?}", start.elapsed());
    assert!(matches!(answer, Some((503, _))), "{answer:?}");
    assert!(names(&manager.slices().await).contains("before"));
    // Many concurrent requests do not wait for each other in sequence.
    let many = (0..16).map(|i| {
        let name = format!("meanwhile-{i}");
        let manager = &manager;
        async move { manager.call("POST", "/v1/slices", slice(&name, 1000)).await }
    });
    let many = futures_util::future::join_all(many).await;
    println!("and {} at once: {:?}", many.len(), start.elapsed());
    postgres.signal(Signal::SIGCONT);
    assert!(many.iter().all(|answer| matches!(answer, Some((503, _)))), "{many:?}");
    let outage = works_again(&manager, "after").await;
    println!("works again after {outage:?}");
    assert!(names(&manager.slices().await).is_superset(&["before", "after"].map(str::to_owned).into()));
}

/// An instance stopped during a change holds the lock of changes. Other instances refuse changes in time, and
/// continue when the server has ended the stopped one's connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_stopped_during_a_change_does_not_block_others() {
    let Some(postgres) = Postgres::start().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let stopped = Arc::new(Manager::start(folder.path(), "a", &postgres.url()).await);
    let other = Manager::start(folder.path(), "b", &postgres.url()).await;
    let pid = Pid::from_raw(stopped.child.id() as i32);
    let asks = stopped.clone();
    let load = tokio::spawn(async move {
        for i in 0.. {
            if asks
                .call("PUT", &format!("/v1/ues/u{}", i % 10), Some(serde_json::json!({"slices": []})))
                .await
                .is_none()
            {
                break;
            }
        }
    });
    let busy = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    let mut tries = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(7 + tries % 5)).await;
        kill(pid, Signal::SIGSTOP).unwrap();
        // Its requests have been answered by now.
        tokio::time::sleep(Duration::from_millis(20)).await;
        if postgres.sql(&[busy]).trim() != "0" {
            break;
        }
        kill(pid, Signal::SIGCONT).unwrap();
        tries += 1;
        assert!(tries < 300, "it is never in the middle of a change");
    }
    let start = Instant::now();
    let answer = other.call("POST", "/v1/slices", slice("meanwhile", 1000)).await;
    assert!(matches!(answer, Some((503 | 201, _))), "{answer:?} after {:?}", start.elapsed());
    works_again(&other, "after").await;
    println!("an instance stopped in the middle of a change: the other goes on after {:?}", start.elapsed());
    kill(pid, Signal::SIGCONT).unwrap();
    works_again(&stopped, "too").await;
    load.abort();
    let all = names(&other.settled().await);
    assert!(all.is_superset(&["after", "too"].map(str::to_owned).into()), "{all:?}");
}

/// Stopped, and without descriptors: connected clients are served, and no answered change is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_was_stopped_or_had_no_descriptors_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let database = format!("sqlite:{}/slices.db", folder.path().display());
    let mut manager = Manager::start(folder.path(), "one", &database).await;
    let pid = manager.child.id();
    manager.call("POST", "/v1/slices", slice("before", 1000)).await.unwrap();
    manager.settled().await;

    kill(Pid::from_raw(pid as i32), Signal::SIGSTOP).unwrap();
    let later = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        kill(Pid::from_raw(pid as i32), Signal::SIGCONT).unwrap();
    };
    let asked = manager.call("POST", "/v1/slices", slice("stopped", 1000));
    let (answer, ()) = futures_util::future::join(asked, later).await;
    assert!(matches!(answer, Some((201, _))), "{answer:?}");

    let limit = take_descriptors(pid);
    let stranger = || {
        let socket = folder.path().join("one.sock");
        let http = reqwest::Client::builder().no_proxy().unix_socket(socket).build().unwrap();
        http.get("http://x/v1/slices").timeout(Duration::from_secs(1)).send()
    };
    assert!(stranger().await.is_err(), "there is no descriptor for it");
    // Over the existing connection.
    let mut expected: BTreeSet<String> = ["before", "stopped"].map(str::to_owned).into();
    for i in 0..20 {
        let name = format!("s{i}");
        match manager.call("POST", "/v1/slices", slice(&name, 1000)).await {
            Some((201, _)) => drop(expected.insert(name)),
            Some((503, said)) => {
                assert!(said["detail"].as_str().unwrap().contains("nothing has changed"), "{said}")
            }
            other => panic!("{other:?}"),
        }
    }
    give_descriptors(pid, &limit);
    let end = Instant::now() + Duration::from_secs(5);
    while stranger().await.is_err() {
        assert!(Instant::now() < end, "with descriptors it does not answer either");
    }
    println!("without descriptors: {} of 20 changes made; then all", expected.len() - 2);
    works_again(&manager, "after").await;
    expected.insert("after".to_owned());
    assert_eq!(names(&manager.settled().await), expected);
    manager.kill();
    let again = Manager::start(folder.path(), "one", &database).await;
    assert_eq!(names(&again.settled().await), expected);
}
