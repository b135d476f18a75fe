//! Flow: store. One file for all processes of a user: concurrency, sudden death, full disks, damaged files.

use std::path::{Path, PathBuf};

use chrono::Local;
use serde_json::json;
use zapmyco::ids::{JobId, SessionId};
use zapmyco::store::{JobFilter, JobRow, MessageRow, SessionFilter, SessionRow, Store, StoreError};

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
    let home = super::support::Home::new();
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
    let home = super::support::Home::new();
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
        }
    });
}
