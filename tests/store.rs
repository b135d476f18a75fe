//! Flow: store. One file for all processes of a user: concurrency, sudden death, full disks, damaged files.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use chrono::Local;
use serde_json::json;
use zapmyco::ids::{JobId, SessionId};
use zapmyco::store::database::SCHEMA_VERSION;
use zapmyco::store::{JobFilter, JobRow, MessageRow, SessionFilter, SessionRow, Store, StoreError};

use crate::support::Home;

fn session_row(cwd: &Path) -> SessionRow {
    let now = Local::now();
    SessionRow {
        id: SessionId::new_main(),
        parent: None,
        task_type: "main".into(),
        cwd: cwd.to_owned(),
        model: "script:x".into(),
        mode: "default".into(),
        title: "a title".into(),
        state: json!({"todos": []}),
        created_at: now,
        updated_at: now,
    }
}

fn job_row(session: &SessionId) -> JobRow {
    JobRow {
        session: session.clone(),
        id: JobId::new_process_agent(Local::now()),
        kind: "process_agent".into(),
        title: "count lines".into(),
        status: "running".into(),
        created_at: Local::now(),
        started_at: None,
        ended_at: None,
        end: None,
        notified: false,
        folder: PathBuf::from("/nowhere"),
    }
}

fn message(seq: i64, text: &str) -> MessageRow {
    MessageRow { seq, source: "user".into(), message: json!({"text": text}), at: Local::now() }
}

#[tokio::test]
async fn a_session_comes_back_as_it_was_written() {
    let home = Home::new();
    let path = home.root().join("deep/zapmyco.db");
    let row = session_row(Path::new("/work"));
    let store = Store::open(&path).unwrap();
    store.create_session(row.clone()).await.unwrap();
    let taken = store.create_session(row.clone()).await.unwrap_err();
    assert!(matches!(taken, StoreError::Taken { what: "session", .. }), "{taken}");
    store.append_messages(&row.id, vec![message(1, "hello\0\u{1b}"), message(2, "世界")]).await.unwrap();
    let second = store.append_messages(&row.id, vec![message(3, "x"), message(2, "y")]).await.unwrap_err();
    assert!(matches!(second, StoreError::Taken { what: "message", .. }), "{second}");
    let unknown = store.append_messages(&SessionId::new_main(), vec![message(1, "x")]).await.unwrap_err();
    assert!(matches!(unknown, StoreError::UnknownSession { .. }), "{unknown}");
    store.append_event(&row.id, "turn_started", json!({"n": 1})).await.unwrap();
    store.set_title(&row.id, "another").await.unwrap();
    store.save_state(&row.id, &json!({"todos": [1]})).await.unwrap();
    drop(store);

    let store = Store::open(&path).unwrap();
    let read = store.session(&row.id).await.unwrap().unwrap();
    assert_eq!((read.title.as_str(), &read.state), ("another", &json!({"todos": [1]})));
    assert_eq!(read.created_at.timestamp_micros(), row.created_at.timestamp_micros());
    let messages = store.messages(&row.id).await.unwrap();
    assert_eq!(messages.iter().map(|row| row.seq).collect::<Vec<_>>(), [1, 2], "a refused batch leaves nothing behind");
    assert_eq!(messages[0].message, json!({"text": "hello\0\u{1b}"}));
    assert_eq!(store.events(&row.id, 0, 10).await.unwrap()[0].kind, "turn_started");
}

#[tokio::test]
async fn the_newest_main_session_is_that_of_the_directory() {
    let store = Store::in_memory().unwrap();
    let (one, two, other) = (session_row(Path::new("/a")), session_row(Path::new("/a")), session_row(Path::new("/b")));
    let child = SessionRow { task_type: "process_child".into(), parent: Some(one.id.clone()), ..session_row(Path::new("/a")) };
    for row in [&one, &two, &other, &child] {
        store.create_session(row.clone()).await.unwrap();
    }
    assert_eq!(store.newest_main(Path::new("/a")).await.unwrap().unwrap().id, two.id);
    store.append_messages(&one.id, vec![message(1, "used again")]).await.unwrap();
    assert_eq!(store.newest_main(Path::new("/a")).await.unwrap().unwrap().id, one.id);
    assert!(store.newest_main(Path::new("/c")).await.unwrap().is_none());
    let children = store.sessions(SessionFilter { parent: Some(one.id.clone()), ..SessionFilter::default() }).await.unwrap();
    assert_eq!(children.iter().map(|row| &row.id).collect::<Vec<_>>(), [&child.id]);
}

/// R257
#[tokio::test]
async fn jobs_are_kept_by_session_and_announced_once() {
    let store = Store::in_memory().unwrap();
    let (session, other) = (SessionId::new_main(), SessionId::new_main());
    let mut job = job_row(&session);
    store.put_job(job.clone()).await.unwrap();
    store.put_job(job_row(&other)).await.unwrap();
    job.ended_at = Some(Local::now());
    job.status = "completed".into();
    job.end = Some(json!({"code": 0}));
    store.put_job(job.clone()).await.unwrap();
    let listed = store.jobs_of(&session).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].status.as_str(), &listed[0].end), ("completed", &job.end));
    assert!(store.job(&other, &job.id).await.unwrap().is_none(), "isolated by session");
    assert_eq!(store.all_jobs(JobFilter { ended: Some(true), ..JobFilter::default() }).await.unwrap().len(), 1);
    assert!(store.mark_notified(&session, &job.id).await.unwrap());
    assert!(!store.mark_notified(&session, &job.id).await.unwrap(), "only the first announces");
    let found = job_row(&session);
    store.replace_jobs_of(&session, vec![job.clone(), found.clone()]).await.unwrap();
    assert!(store.job(&session, &job.id).await.unwrap().unwrap().notified, "a rebuilt index announces nothing twice");
    assert_eq!(store.jobs_of(&session).await.unwrap().len(), 2);
    assert!(store.remove_job(&session, &found.id).await.unwrap());
    assert!(!store.remove_job(&session, &found.id).await.unwrap());
    assert_eq!(store.jobs_of(&other).await.unwrap().len(), 1);
}

/// fault G5
#[test]
fn many_writers_share_one_file() {
    let home = Home::new();
    let path = home.root().join("zapmyco.db");
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    let store = Store::open(&path).unwrap();
                    let row = session_row(Path::new("/w"));
                    store.create_session(row.clone()).await.unwrap();
                    for seq in 1..=10 {
                        store.append_messages(&row.id, vec![message(seq, "x")]).await.unwrap();
                        store.append_event(&row.id, "step", json!({"seq": seq})).await.unwrap();
                        // Reads before it writes: a transaction that must not begin as a mere reader.
                        store.replace_jobs_of(&row.id, vec![job_row(&row.id)]).await.unwrap();
                    }
                });
            });
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&path).unwrap();
        let sessions = store.sessions(SessionFilter::default()).await.unwrap();
        assert_eq!(sessions.len(), 32);
        for session in sessions {
            assert_eq!(store.messages(&session.id).await.unwrap().len(), 10);
            assert_eq!(store.events(&session.id, 0, 100).await.unwrap().len(), 10);
            assert_eq!(store.jobs_of(&session.id).await.unwrap().len(), 1);
        }
    });
}

/// Starts this test binary again with one of the child roles below; its lines come through the pipe.
fn child(role: &str, database: &Path, turns: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("store::{role}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD_DATABASE, database)
        .env(CHILD_TURNS, turns.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

const CHILD_DATABASE: &str = "STORE_TEST_DATABASE";
const CHILD_TURNS: &str = "STORE_TEST_TURNS";

/// What a child has said so far.
struct Said {
    lines: BufReader<ChildStdout>,
    session: Option<SessionId>,
    acknowledged: i64,
}

impl Said {
    fn by(child: &mut Child) -> Self {
        Self { lines: BufReader::new(child.stdout.take().unwrap()), session: None, acknowledged: 0 }
    }

    /// False at the end of the child.
    fn next(&mut self) -> bool {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap() == 0 {
            return false;
        }
        // The test harness starts the first line with words of its own.
        if let Some((_, session)) = line.split_once("session: ") {
            self.session = Some(SessionId::parse(session.trim()).unwrap());
        }
        if let Some(number) = line.strip_prefix("ack: ") {
            self.acknowledged = number.trim().parse().unwrap();
        }
        true
    }

    fn until(&mut self, acknowledged: i64) {
        while self.acknowledged < acknowledged {
            assert!(self.next(), "the child ended early");
        }
    }
}

/// Child role: appends a message and an event per turn and says so when both are committed.
#[test]
fn child_that_writes() {
    let Some(database) = std::env::var_os(CHILD_DATABASE) else { return };
    let turns: i64 = std::env::var(CHILD_TURNS).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(Path::new(&database)).unwrap();
        let row = session_row(Path::new("/w"));
        store.create_session(row.clone()).await.unwrap();
        println!("session: {}", row.id);
        for seq in 1..=turns {
            store.append_messages(&row.id, vec![message(seq, &"x".repeat(500))]).await.unwrap();
            store.append_event(&row.id, "turn", json!({"seq": seq})).await.unwrap();
            println!("ack: {seq}");
            std::io::stdout().flush().unwrap();
        }
    });
}

async fn written(store: &Store, session: &SessionId) -> (Vec<i64>, Vec<i64>) {
    let messages = store.messages(session).await.unwrap().iter().map(|row| row.seq).collect();
    let events = store.events(session, 0, u32::MAX).await.unwrap();
    (messages, events.iter().map(|row| row.data["seq"].as_i64().unwrap()).collect())
}

/// A SIGKILL at any moment loses at most what was in flight: everything acknowledged is there, nothing is half there,
/// and the others who write the same file go on.
#[tokio::test]
async fn sudden_death_loses_at_most_what_was_in_flight() {
    let home = Home::new();
    let path = home.root().join("zapmyco.db");
    let mut survivor = child("child_that_writes", &path, 100);
    let mut survivor_said = Said::by(&mut survivor);
    survivor_said.until(1);
    for round in 0..12 {
        let mut victim = child("child_that_writes", &path, u32::MAX);
        let mut said = Said::by(&mut victim);
        said.until(1 + round * 3);
        victim.kill().unwrap();
        victim.wait().unwrap();
        while said.next() {}
        let store = Store::open(&path).unwrap();
        let (messages, events) = written(&store, said.session.as_ref().unwrap()).await;
        let acknowledged = said.acknowledged;
        for (what, found) in [("messages", messages), ("events", events)] {
            let whole: Vec<i64> = (1..=found.len() as i64).collect();
            assert_eq!(found, whole, "{what} without gaps");
            let lost_or_extra = found.len() as i64 - acknowledged;
            assert!((0..=1).contains(&lost_or_extra), "{what}: {} found, {acknowledged} acknowledged", found.len());
        }
    }
    survivor_said.until(100);
    assert!(survivor.wait().unwrap().success());
    let store = Store::open(&path).unwrap();
    let (messages, events) = written(&store, survivor_said.session.as_ref().unwrap()).await;
    assert_eq!((messages.len(), events.len()), (100, 100));
}

/// fault G5
#[tokio::test]
async fn many_processes_share_one_home() {
    let home = Home::new();
    let path = home.root().join("new/zapmyco.db");
    // None waits for the others: the file itself is made by whoever is first.
    let children: Vec<Child> = (0..32).map(|_| child("child_that_writes", &path, 10)).collect();
    let mut sessions = Vec::new();
    for mut child in children {
        let mut said = Said::by(&mut child);
        said.until(10);
        while said.next() {}
        assert!(child.wait().unwrap().success());
        sessions.push(said.session.unwrap());
    }
    let store = Store::open(&path).unwrap();
    assert_eq!(store.sessions(SessionFilter::default()).await.unwrap().len(), 32);
    for session in &sessions {
        let (messages, events) = written(&store, session).await;
        assert_eq!((messages.len(), events.len()), (10, 10));
    }
    drop(store);
    let left: Vec<_> = path.parent().unwrap().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["zapmyco.db"], "the last one to leave tidies up");
}

#[tokio::test]
async fn the_file_is_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let path = home.root().join("a/zapmyco.db");
    let store = Store::open(&path).unwrap();
    store.create_session(session_row(Path::new("/w"))).await.unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.parent().unwrap()), 0o700);
    for entry in path.parent().unwrap().read_dir().unwrap() {
        let entry = entry.unwrap().path();
        assert_eq!(mode(&entry), 0o600, "{}", entry.display());
    }
}

#[tokio::test]
async fn what_was_sent_is_written_even_when_nobody_waits() {
    let home = Home::new();
    let path = home.root().join("zapmyco.db");
    let session = SessionId::new_main();
    let store = Store::open(&path).unwrap();
    for n in 0..50 {
        // Looked at once, then dropped.
        let _ = tokio::time::timeout(Duration::ZERO, store.append_event(&session, "step", json!({"n": n}))).await;
    }
    let other = store.clone();
    drop(store);
    other.flush().await.unwrap();
    assert_eq!(Store::open(&path).unwrap().events(&session, 0, 100).await.unwrap().len(), 50);
    let _ = tokio::time::timeout(Duration::ZERO, other.append_event(&session, "step", json!({}))).await;
    drop(other);
    assert_eq!(Store::open(&path).unwrap().events(&session, 0, 100).await.unwrap().len(), 51);
}

#[tokio::test]
async fn of_writes_that_wait_together_only_the_wrong_one_fails() {
    let store = Store::in_memory().unwrap();
    let row = session_row(Path::new("/w"));
    store.create_session(row.clone()).await.unwrap();
    store.append_messages(&row.id, vec![message(20, "taken")]).await.unwrap();
    let writes = (1..=40).map(|seq| store.append_messages(&row.id, vec![message(seq, "x")]));
    let results = futures_util::future::join_all(writes).await;
    let failed: Vec<usize> = results.iter().enumerate().filter(|(_, result)| result.is_err()).map(|(n, _)| n + 1).collect();
    assert_eq!(failed, [20]);
    assert_eq!(store.messages(&row.id).await.unwrap().len(), 40);
}

#[tokio::test]
async fn a_damaged_file_is_named_with_a_remedy() {
    let home = Home::new();
    let path = home.root().join("zapmyco.db");
    std::fs::write(&path, "this is no database, it is a diary".repeat(100)).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("database {} is damaged: ", path.display())), "{error}");
    assert!(error.remedy().unwrap().contains("move"), "{:?}", error.remedy());
    std::fs::remove_file(&path).unwrap();

    // Damage behind the first page shows itself when it is read, and nothing panics.
    let row = session_row(Path::new("/w"));
    let store = Store::open(&path).unwrap();
    store.create_session(row.clone()).await.unwrap();
    store.append_messages(&row.id, (1..100).map(|seq| message(seq, &"y".repeat(300))).collect()).await.unwrap();
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096..].fill(0xA5);
    std::fs::write(&path, bytes).unwrap();
    let store = Store::open(&path).unwrap();
    let error = store.messages(&row.id).await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    drop(store);

    std::fs::write(&path, "").unwrap();
    assert!(Store::open(&path).unwrap().session(&row.id).await.unwrap().is_none(), "an empty file is an empty database");
}

#[test]
fn a_newer_version_is_refused_by_name_and_left_alone() {
    let home = Home::new();
    let path = home.root().join("zapmyco.db");
    drop(Store::open(&path).unwrap());
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", SCHEMA_VERSION + 1).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::NewerVersion { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        format!("database {} has version {}, this program knows versions up to {SCHEMA_VERSION}", path.display(), SCHEMA_VERSION + 1)
    );
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_an_error_with_its_table() {
    let home = Home::new();
    let path = home.root().join("zapmyco.db");
    let row = session_row(Path::new("/w"));
    let store = Store::open(&path).unwrap();
    store.create_session(row.clone()).await.unwrap();
    rusqlite::Connection::open(&path).unwrap().execute("UPDATE sessions SET state = '{'", []).unwrap();
    let error = store.session(&row.id).await.unwrap_err();
    assert!(matches!(error, StoreError::BadRow { table: "sessions", .. }), "{error}");
}

/// fault J8
#[test]
fn a_root_that_cannot_be_made_is_named_with_the_remedy() {
    let home = Home::new();
    let file = home.write("a-file", "");
    for root in [Path::new("/proc/zapmyco"), file.as_path()] {
        let error = Store::open(&root.join("zapmyco.db")).unwrap_err();
        assert!(error.is_not_writable(), "{error}");
        assert!(error.to_string().contains(&root.display().to_string()), "{error}");
        assert!(error.remedy().unwrap().contains("ZAPMYCO_HOME"));
    }
    let error = Store::open(&home.root()).unwrap_err();
    assert!(matches!(error, StoreError::Open { .. }), "a folder in its place: {error}");
}

/// Child role, on a file system of 1 MB of its own: fills it, reads, makes room, goes on; then read-only.
#[test]
fn child_on_a_small_disk() {
    let Some(database) = std::env::var_os(CHILD_DATABASE).map(PathBuf::from) else { return };
    let folder = database.parent().unwrap().to_owned();
    let mount = |arguments: &[&str]| assert!(Command::new("mount").args(arguments).arg(&folder).status().unwrap().success());
    mount(&["-t", "tmpfs", "-o", "size=1m", "none"]);
    let ballast = folder.join("ballast");
    std::fs::write(&ballast, vec![0; 300 << 10]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&database).unwrap();
        let row = session_row(Path::new("/w"));
        store.create_session(row.clone()).await.unwrap();
        let mut seq = 0;
        let error = loop {
            match store.append_messages(&row.id, vec![message(seq + 1, &"z".repeat(20_000))]).await {
                Ok(()) => seq += 1,
                Err(error) => break error,
            }
            assert!(seq < 100, "1 MB is never full");
        };
        assert!(matches!(error, StoreError::Full { .. }), "{error}");
        assert!(error.remedy().unwrap().contains("space"));
        assert_eq!(store.messages(&row.id).await.unwrap().len() as i64, seq, "what was acknowledged is still there");
        std::fs::remove_file(&ballast).unwrap();
        store.append_messages(&row.id, vec![message(seq + 1, "room again")]).await.unwrap();
        drop(store);

        // Not even room for the log's index: told as what it is, too.
        let mut filling = std::fs::File::create(&ballast).unwrap();
        while std::io::Write::write_all(&mut filling, &[0; 4096]).is_ok() {}
        drop(filling);
        let error = match Store::open(&database) {
            Err(error) => error,
            Ok(store) => store.append_messages(&row.id, vec![message(seq + 2, "x")]).await.unwrap_err(),
        };
        assert!(matches!(error, StoreError::Full { .. }), "{error}");
        std::fs::remove_file(&ballast).unwrap();

        mount(&["-o", "remount,ro"]);
        let error = match Store::open(&database) {
            Err(error) => error,
            Ok(store) => store.append_messages(&row.id, vec![message(seq + 2, "x")]).await.unwrap_err(),
        };
        assert!(error.is_not_writable(), "{error}");
        mount(&["-o", "remount,rw"]);
        let store = Store::open(&database).unwrap();
        assert_eq!(store.messages(&row.id).await.unwrap().len() as i64, seq + 1);
    });
    println!("small disk: done");
}

/// faults K5, J8
#[test]
fn a_full_or_read_only_disk_is_told_and_loses_nothing() {
    let isolated = Command::new("unshare").args(["--map-root-user", "--mount", "true"]).stderr(Stdio::null()).status();
    if !isolated.is_ok_and(|status| status.success()) {
        eprintln!("NOT RUN: this system lets a test mount no file system of its own (unshare --map-root-user --mount)");
        return;
    }
    let home = Home::new();
    let mut child = Command::new("unshare")
        .args(["--map-root-user", "--mount"])
        .arg(std::env::current_exe().unwrap())
        .args(["store::child_on_a_small_disk", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD_DATABASE, home.root().join("zapmyco.db"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    let mut complaints = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
    assert!(child.wait().unwrap().success() && said.contains("small disk: done"), "{said}\n{complaints}");
}
